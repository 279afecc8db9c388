"""The list of stages: their order, the check between them, their texts, and that they repeat."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from thunder_mdfuse import pipeline
from thunder_mdfuse.dump import Dump
from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir.graph import Fusion, Use
from thunder_mdfuse.ir.text import parse, render
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.schedule.program import InputClass
from thunder_mdfuse.schedule.target import H200

ROOT = Path(__file__).parent.parent

# A row-parallel sum: two kernels around a collective, with sizes that only a call knows.
SHARDED = """
global mesh[tp=2] digest d
%0 = input(position=0) : f32[s0, 8] @ [Shard(1)]
%1 = exp(%0) : f32[s0, 8] @ [Shard(1)]
%2 = sum(%1; dims=[1]) : f32[s0] @ [Replicate]
%3 = var(%0; dims=[0], correction=0.0) : f32[8] @ [Shard(0)]
return %2, %3
"""


def test_the_stages_and_their_order() -> None:
    names = [name for name, _ in pipeline.STAGES]
    assert names == ["decompose", "propagate", "reshard", "localize"]


def test_each_stage_leaves_a_text_that_reads_back() -> None:
    dump = Dump("test")
    local = pipeline.lower(parse(SHARDED), dump).local
    assert list(dump.texts) == ["region", *(name for name, _ in pipeline.STAGES)]
    for name, text in dump.texts.items():
        assert render(verify(parse(text), name)) == text
    assert parse(dump.texts["localize"]) == local
    assert (parse(dump.texts["reshard"]).level, local.level) == ("global", "local")


def test_a_plan_leaves_the_program_and_each_kernel() -> None:
    dump = Dump("test")
    local = pipeline.lower(parse(SHARDED), dump).local
    hints = {"s0": 6, "@tp": 0}
    program, texts = pipeline.plan(local, [InputClass(None)], H200, hints, "cpu", dump)
    assert [t.plan for t in texts] == list(program.kernels)
    assert dump.texts["program"] == str(program)
    kernels = [n for n in dump.texts if n.startswith("kernel")]
    assert kernels == [f"kernel{i}" for i in range(len(texts))]
    assert [s.kind for s in program.steps].count("start") == 1


def _broken(fusion: Fusion) -> Fusion:
    """The last node reads itself."""
    last = len(fusion.nodes) - 1
    node = replace(fusion.nodes[last], args=(Use(last),))
    return replace(fusion, nodes=(*fusion.nodes[:last], node))


@pytest.mark.parametrize("check", ["0", "1"])
def test_a_broken_stage_is_caught_at_its_own_border(
    check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MDFUSE_VERIFY", check)
    monkeypatch.setattr(pipeline, "STAGES", (("mend", lambda f: f), ("break", _broken)))
    fusion = parse("global\n%0 = input(position=0) : f32[4]\n%1 = exp(%0) : f32[4]\nreturn %1")
    if check == "0":
        pipeline.lower(fusion, Dump("test"))
        return
    with pytest.raises(IRError, match=r"after break: %1 reads %1"):
        pipeline.lower(fusion, Dump("test"))


# Many symbols, views, masks, several kernels: whatever iterated over a set would show.
SCRIPT = """
from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import H200
fusion = parse('''local
%0 = input(position=0) : bf16[s0, s1, s2]
%1 = input(position=1) : bf16[s1, s0, s2]
%2 = permute(%1; dims=[1, 0, 2]) : bf16[s0, s1, s2]
%3 = cat(%0, %2; dim=1) : bf16[s0, 2*s1, s2]
%4 = reshape(%3; shape=[s0, 2*s1*s2]) : bf16[s0, 2*s1*s2]
%5 = const(value='0.5', dtype=f64) : f64
%6 = pad(%4, %5; low=[0, 3], high=[0, 1]) : bf16[s0, 2*s1*s2 + 4]
%7 = sum(%4; dims=[1]) : bf16[s0]
%8 = amax(%4; dims=[0]) : bf16[2*s1*s2]
%9 = broadcast_in_dim(%7; shape=[s0, 2*s1*s2], dims=[0]) : bf16[s0, 2*s1*s2]
%10 = mul(%4, %9) : bf16[s0, 2*s1*s2]
return %6, %10, %8, %7''')
hints = {"s0": 6, "s1": 8, "s2": 12}
for strides in ((None, None), (None, (96, 12, 1))):
    program = plan_program(fusion, [InputClass(s, 8) for s in strides], H200, hints, "cpu")
    print(program)
    for kernel in program.kernels:
        text = write_kernel(kernel)
        print(text.source, text.sizes, text.scalars, text.blocks, text.shared)
"""


def test_plans_and_texts_are_the_same_in_every_process() -> None:
    """Python hashes strings differently in each; nothing may follow the order of a set of them."""
    found = set()
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        found.add(done.stdout)
    (text,) = found
    assert text.count("__global__") >= 4
