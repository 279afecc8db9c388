"""Single ops beside the torch functions that they are, for comparison with eager DTensor."""

import torch

from thunder_mdfuse.ir.text import parse_type

F = torch.nn.functional

# (operand types, our op with its result type, torch's function). A row with one placement an
# operand is on the mesh [tp=4], one with two on [dp=2, tp=2]. ``%c`` is the constant 0.
CASES = {
    "neg of a shard": (["f32[8, 4] @ [Shard(0)]"], "neg(%0) : f32[8, 4]", torch.neg),
    "neg of a sum": (["f32[8] @ [Partial(sum)]"], "neg(%0) : f32[8]", torch.neg),
    "exp of a sum": (["f32[8] @ [Partial(sum)]"], "exp(%0) : f32[8]", torch.exp),
    "uneven": (["f32[5, 4] @ [Shard(0)]"], "exp(%0) : f32[5, 4]", torch.exp),
    "add S R": (
        ["f32[8, 4] @ [Shard(1)]", "f32[8, 4] @ [Replicate]"],
        "add(%0, %1) : f32[8, 4]",
        torch.add,
    ),
    "add R S": (
        ["f32[8, 4] @ [Replicate]", "f32[8, 4] @ [Shard(1)]"],
        "add(%0, %1) : f32[8, 4]",
        torch.add,
    ),
    "add S0 S1": (
        ["f32[8, 4] @ [Shard(0)]", "f32[8, 4] @ [Shard(1)]"],
        "add(%0, %1) : f32[8, 4]",
        torch.add,
    ),
    "add P P": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Partial(sum)]"],
        "add(%0, %1) : f32[8]",
        torch.add,
    ),
    "add R P": (
        ["f32[8] @ [Replicate]", "f32[8] @ [Partial(sum)]"],
        "add(%0, %1) : f32[8]",
        torch.add,
    ),
    "add S P": (
        ["f32[8] @ [Shard(0)]", "f32[8] @ [Partial(sum)]"],
        "add(%0, %1) : f32[8]",
        torch.add,
    ),
    "mul P R": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Replicate]"],
        "mul(%0, %1) : f32[8]",
        torch.mul,
    ),
    "mul P P": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Partial(sum)]"],
        "mul(%0, %1) : f32[8]",
        torch.mul,
    ),
    "div P R": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Replicate]"],
        "div(%0, %1) : f32[8]",
        torch.div,
    ),
    "maximum of maxima": (
        ["f32[8] @ [Partial(max)]", "f32[8] @ [Partial(max)]"],
        "maximum(%0, %1) : f32[8]",
        torch.maximum,
    ),
    "compare": (
        ["f32[8, 4] @ [Shard(0)]", "f32[8, 4] @ [Shard(0)]"],
        "lt(%0, %1) : bool[8, 4]",
        torch.lt,
    ),
    "sum over a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "sum(%0; dims=[0]) : f32[4]",
        lambda x: x.sum(0),
    ),
    "sum beside a shard": (
        ["f32[8, 4] @ [Shard(1)]"],
        "sum(%0; dims=[0]) : f32[4]",
        lambda x: x.sum(0),
    ),
    "sum of a sum": (
        ["f32[8, 4] @ [Partial(sum)]"],
        "sum(%0; dims=[0]) : f32[4]",
        lambda x: x.sum(0),
    ),
    "amax over a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "amax(%0; dims=[0]) : f32[4]",
        lambda x: x.amax(0),
    ),
    "amin of a sum": (
        ["f32[8, 4] @ [Partial(sum)]"],
        "amin(%0; dims=[0]) : f32[4]",
        lambda x: x.amin(0),
    ),
    "prod over a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "prod(%0; dims=[0]) : f32[4]",
        lambda x: x.prod(0),
    ),
    "var over a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "var(%0; dims=[0], correction=1.0) : f32[4]",
        lambda x: x.var(0),
    ),
    "cumsum along a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "cumsum(%0; dim=0) : f32[8, 4]",
        lambda x: x.cumsum(0),
    ),
    "permute": (
        ["f32[8, 4] @ [Shard(1)]"],
        "permute(%0; dims=[1, 0]) : f32[4, 8]",
        lambda x: x.t(),
    ),
    "unsqueeze": (
        ["f32[8] @ [Shard(0)]"],
        "broadcast_in_dim(%0; shape=[1, 8], dims=[1]) : f32[1, 8]",
        lambda x: x.unsqueeze(0),
    ),
    "expand": (
        ["f32[8, 1] @ [Shard(0)]"],
        "broadcast_in_dim(%0; shape=[8, 4], dims=[0, 1]) : f32[8, 4]",
        lambda x: x.expand(8, 4),
    ),
    "squeeze": (
        ["f32[8, 1] @ [Shard(0)]"],
        "squeeze(%0; dims=[1]) : f32[8]",
        lambda x: x.squeeze(1),
    ),
    "split the sharded dim": (
        ["f32[8, 4] @ [Shard(0)]"],
        "reshape(%0; shape=[4, 2, 4]) : f32[4, 2, 4]",
        lambda x: x.reshape(4, 2, 4),
    ),
    "merge behind the sharded dim": (
        ["f32[8, 4] @ [Shard(0)]"],
        "reshape(%0; shape=[32]) : f32[32]",
        lambda x: x.reshape(32),
    ),
    "keep an uneven dim": (
        ["f32[5, 6] @ [Shard(0)]"],
        "reshape(%0; shape=[5, 2, 3]) : f32[5, 2, 3]",
        lambda x: x.reshape(5, 2, 3),
    ),
    "slice beside a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "slice(%0; starts=[0, 1], ends=[8, 3], steps=[1, 1]) : f32[8, 2]",
        lambda x: x[:, 1:3],
    ),
    "cat beside a shard": (
        ["f32[8, 4] @ [Shard(0)]", "f32[8, 2] @ [Shard(0)]"],
        "cat(%0, %1; dim=1) : f32[8, 6]",
        lambda *xs: torch.cat(xs, 1),
    ),
    "cat along a shard": (
        ["f32[8, 4] @ [Shard(0)]", "f32[8, 4] @ [Shard(0)]"],
        "cat(%0, %1; dim=0) : f32[16, 4]",
        lambda *xs: torch.cat(xs, 0),
    ),
    "column-parallel linear": (
        ["f32[8, 4] @ [Replicate]", "f32[12, 4] @ [Shard(0)]"],
        "linear(%0, %1) : f32[8, 12]",
        F.linear,
    ),
    "row-parallel linear": (
        ["f32[8, 4] @ [Shard(1)]", "f32[12, 4] @ [Shard(1)]"],
        "linear(%0, %1) : f32[8, 12]",
        F.linear,
    ),
    "row-parallel linear with bias": (
        ["f32[8, 4] @ [Shard(1)]", "f32[12, 4] @ [Shard(1)]", "f32[12] @ [Replicate]"],
        "linear(%0, %1, %2) : f32[8, 12]",
        F.linear,
    ),
    "data-parallel linear": (
        ["f32[8, 4] @ [Shard(0)]", "f32[12, 4] @ [Replicate]"],
        "linear(%0, %1) : f32[8, 12]",
        F.linear,
    ),
    "matmul with a sharded contraction": (
        ["f32[8, 4] @ [Shard(1)]", "f32[4, 8] @ [Shard(0)]"],
        "matmul(%0, %1) : f32[8, 8]",
        torch.matmul,
    ),
    "batched matmul": (
        ["f32[8, 2, 4] @ [Shard(0)]", "f32[8, 4, 2] @ [Shard(0)]"],
        "matmul(%0, %1) : f32[8, 2, 2]",
        torch.bmm,
    ),
    "embedding, replicated weight": (
        ["i64[8, 3] @ [Shard(0)]", "f32[16, 4] @ [Replicate]"],
        "embedding(%0, %1) : f32[8, 3, 4]",
        F.embedding,
    ),
    "embedding, column-parallel": (
        ["i64[8, 3] @ [Replicate]", "f32[16, 4] @ [Shard(1)]"],
        "embedding(%0, %1) : f32[8, 3, 4]",
        F.embedding,
    ),
    "embedding, row-parallel": (
        ["i64[8, 3] @ [Replicate]", "f32[16, 4] @ [Shard(0)]"],
        "embedding(%0, %1) : f32[8, 3, 4]",
        F.embedding,
    ),
    "two axes": (
        ["f32[8, 4] @ [Shard(0), Shard(1)]"],
        "sum(%0; dims=[1]) : f32[8]",
        lambda x: x.sum(1),
    ),
    "one dim on two axes": (
        ["f32[8, 4] @ [Shard(0), Shard(0)]"],
        "exp(%0) : f32[8, 4]",
        torch.exp,
    ),
    "two axes, linear": (
        ["f32[8, 4] @ [Shard(0), Replicate]", "f32[12, 4] @ [Replicate, Shard(0)]"],
        "linear(%0, %1) : f32[8, 12]",
        F.linear,
    ),
    "cast of a shard": (
        ["f32[8] @ [Shard(0)]"],
        "cast(%0; dtype=f64) : f64[8]",
        lambda x: x.to(torch.float64),
    ),
    "cast of a sum": (
        ["f32[8] @ [Partial(sum)]"],
        "cast(%0; dtype=f64) : f64[8]",
        lambda x: x.to(torch.float64),
    ),
    "add P R": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Replicate]"],
        "add(%0, %1) : f32[8]",
        torch.add,
    ),
    # What follows is where eager and this package may differ.
    "argmax over a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "argmax(%0; dim=0) : i64[4]",
        lambda x: x.argmax(0),
    ),
    "argmax of a sum": (
        ["f32[8, 4] @ [Partial(sum)]"],
        "argmax(%0; dim=0) : i64[4]",
        lambda x: x.argmax(0),
    ),
    "flip along a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "flip(%0; dims=[0]) : f32[8, 4]",
        lambda x: x.flip(0),
    ),
    "flip beside a shard": (
        ["f32[8, 4] @ [Shard(1)]"],
        "flip(%0; dims=[0]) : f32[8, 4]",
        lambda x: x.flip(0),
    ),
    "slice of a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "slice(%0; starts=[1, 0], ends=[5, 4], steps=[1, 1]) : f32[4, 4]",
        lambda x: x[1:5],
    ),
    "pad beside a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "pad(%0, %c; low=[0, 1], high=[0, 1]) : f32[8, 6]",
        lambda x: F.pad(x, [1, 1]),
    ),
    "gather along a shard": (
        ["f32[8, 16] @ [Shard(1)]", "i64[8, 1] @ [Replicate]"],
        "gather(%0, %1; dim=1) : f32[8, 1]",
        lambda x, i: torch.gather(x, 1, i),
    ),
    "gather beside a shard": (
        ["f32[8, 16] @ [Shard(0)]", "i64[8, 1] @ [Shard(0)]"],
        "gather(%0, %1; dim=1) : f32[8, 1]",
        lambda x, i: torch.gather(x, 1, i),
    ),
    "rows of a sharded table": (
        ["f32[16, 4] @ [Shard(0)]", "i64[3] @ [Replicate]"],
        "take(%0, %1; dim=0) : f32[3, 4]",
        lambda x, i: torch.index_select(x, 0, i),
    ),
    "sharded rows added up": (
        ["f32[4, 8] @ [Replicate]", "i64[16] @ [Shard(0)]", "f32[16, 8] @ [Shard(0)]"],
        "index_add(%0, %1, %2; dim=0) : f32[4, 8]",
        lambda x, i, y: torch.index_add(x, 0, i, y),
    ),
    "sort beside a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "sort(%0; dim=1) : f32[8, 4] | i64[8, 4]",
        lambda x: torch.sort(x, 1)[0],
    ),
    "topk along a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "topk(%0; k=2, dim=0) : f32[2, 4] | i64[2, 4]",
        lambda x: torch.topk(x, 2, 0)[0],
    ),
    "remainder of a sum": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Shard(0)]"],
        "remainder(%0, %1) : f32[8]",
        torch.remainder,
    ),
    "where of sums": (
        ["bool[8] @ [Replicate]", "f32[8] @ [Partial(sum)]", "f32[8] @ [Partial(sum)]"],
        "where(%0, %1, %2) : f32[8]",
        torch.where,
    ),
    "sum of an average": (
        ["f32[8, 4] @ [Partial(avg)]"],
        "sum(%0; dims=[0]) : f32[4]",
        lambda x: x.sum(0),
    ),
    "maximum of sums": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Partial(sum)]"],
        "maximum(%0, %1) : f32[8]",
        torch.maximum,
    ),
    "amax of a maximum": (
        ["f32[8, 4] @ [Partial(max)]"],
        "amax(%0; dims=[0]) : f32[4]",
        lambda x: x.amax(0),
    ),
    "expand a sum": (
        ["f32[8, 1] @ [Partial(sum)]"],
        "broadcast_in_dim(%0; shape=[8, 4], dims=[0, 1]) : f32[8, 4]",
        lambda x: x.expand(8, 4),
    ),
    "merge in front of the sharded dim": (
        ["f32[8, 4] @ [Shard(1)]"],
        "reshape(%0; shape=[32]) : f32[32]",
        lambda x: x.reshape(32),
    ),
    "cumsum of a sum": (
        ["f32[8, 4] @ [Partial(sum)]"],
        "cumsum(%0; dim=0) : f32[8, 4]",
        lambda x: x.cumsum(0),
    ),
    "matmul of a sum": (
        ["f32[8, 4] @ [Partial(sum)]", "f32[4, 8] @ [Replicate]"],
        "matmul(%0, %1) : f32[8, 8]",
        torch.matmul,
    ),
    "small weight, both dims sharded": (
        ["f32[64, 4] @ [Shard(0)]", "f32[4, 8] @ [Shard(0)]"],
        "matmul(%0, %1) : f32[64, 8]",
        torch.matmul,
    ),
    "add of axes that disagree": (
        ["f32[8, 4] @ [Shard(0), Replicate]", "f32[8, 4] @ [Replicate, Shard(0)]"],
        "add(%0, %1) : f32[8, 4]",
        torch.add,
    ),
    "add of a row": (
        ["f32[8, 4] @ [Shard(0), Shard(1)]", "f32[8, 4] @ [Shard(0), Replicate]"],
        "add(%0, %1) : f32[8, 4]",
        torch.add,
    ),
    "embedding, rows on one axis, positions on the other": (
        ["i64[8, 3] @ [Shard(0), Replicate]", "f32[16, 4] @ [Replicate, Shard(0)]"],
        "embedding(%0, %1) : f32[8, 3, 4]",
        F.embedding,
    ),
    "sum over both axes": (
        ["f32[8, 4] @ [Shard(0), Shard(1)]"],
        "sum(%0; dims=[0, 1]) : f32[]",
        lambda x: x.sum(),
    ),
    "attention by heads": (
        ["f32[2, 8, 6, 4] @ [Shard(1)]"] * 3,
        "sdpa(%0, %1, %2) : f32[2, 8, 6, 4]",
        F.scaled_dot_product_attention,
    ),
}


def program(name: str) -> str:
    """The text of a program that is one case."""
    operands, op, _ = CASES[name]
    axes = "tp=4" if _axes(operands[0]) == 1 else "dp=2, tp=2"
    lines = [f"%{i} = input(position={i}) : {t}" for i, t in enumerate(operands)]
    n = len(operands)
    if "%c" in op:
        lines.append(f"%{n} = const(value='0.0', dtype=f64) : f64")
        op, n = op.replace("%c", f"%{n}"), n + 1
    return "\n".join([f"global mesh[{axes}]", *lines, f"%{n} = {op}", f"return %{n}"])


def _axes(operand: str) -> int:
    placements = parse_type(operand).placements
    return len(placements or ())
