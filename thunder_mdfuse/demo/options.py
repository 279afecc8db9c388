"""The demo's command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from thunder_mdfuse.errors import MdfuseError

RANKS = 2

# The MLP of an 8B-parameter Llama, and one of the same shape that two CPU cores run in moments.
REAL = (4096, 14336)
SMALL = (1024, 3584)
TOKENS = {"cuda": 4096, "cpu": 64}


@dataclass(frozen=True)
class Sizes:
    """``x`` is [tokens, hidden]; the weights are [ffn, hidden] twice and [hidden, ffn]."""

    tokens: int
    hidden: int
    ffn: int


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, checked one by one; a wrong one ends the program with a message."""
    parser = argparse.ArgumentParser(
        prog="python -m thunder_mdfuse.demo",
        description="A tensor-parallel SwiGLU MLP through thunder.jit, shown stage by stage, "
        "checked against eager DTensor, and timed. Starts its own ranks, or is one of the ranks "
        "of torchrun, mpirun or srun.",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="auto: cuda where each rank of this host has a GPU, else cpu",
    )
    parser.add_argument(
        "--ranks", type=_count, help=f"ranks to start when no launcher did (default {RANKS})"
    )
    parser.add_argument(
        "--tokens",
        type=_count,
        help=f"rows of the input (default {TOKENS['cuda']} on a GPU, {TOKENS['cpu']} on a CPU)",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"on a CPU too, hidden {REAL[0]} and FFN {REAL[1]}, not {SMALL[0]} and {SMALL[1]}",
    )
    parser.add_argument(
        "--timeout",
        type=_count,
        default=900,
        help="seconds after which every rank says where it waits and ends (default 900)",
    )
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("needs a positive number")
    return number


def device_for(asked: str, local_ranks: int) -> str:
    """cuda or cpu, for as many ranks on this host.

    Raises ``MdfuseError`` when cuda is asked for and there is no GPU.
    """
    if asked == "cuda" and not torch.cuda.is_available():
        raise MdfuseError(
            "--device cuda was asked for, but torch finds no CUDA GPU here; leave --device out to "
            "run on the CPU"
        )
    if asked != "auto":
        return asked
    enough = torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks
    return "cuda" if enough else "cpu"


def sizes_for(options: argparse.Namespace, device: str) -> Sizes:
    """What to run on ``device``."""
    hidden, ffn = REAL if options.full or device == "cuda" else SMALL
    return Sizes(options.tokens or TOKENS[device], hidden, ffn)
