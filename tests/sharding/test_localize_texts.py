# ruff: noqa: E501 (programs as the printer writes them)
"""Before propagate and after localize."""

from textwrap import dedent

from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.text import parse, render
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.sharding.localize import localize
from thunder_mdfuse.sharding.propagate import propagate
from thunder_mdfuse.sharding.reshard import check, reshard


def check_text(before: str, expected: str) -> None:
    explicit = check(verify(reshard(propagate(parse(before))), "reshard"))
    local = verify(localize(explicit), "localize")
    assert render(local) == dedent(expected).lstrip()
    assert parse(render(local)) == local


def test_uneven_and_empty_shards_on_2x2():
    check_text(
        """
        global mesh[dp=2, tp=2]
        %0 = input(position=0) : f32[5, 3] @ [Shard(0), Shard(1)]
        %1 = input(position=1) : f32[5, 1] @ [Shard(0), Shard(1)]
        %2 = amax(%0; dims=[1]) : f32[5]
        %3 = neg(%1) : f32[5, 1]
        return %2, %3
        """,
        """
        local mesh[dp=2, tp=2]
        %0 = input(position=0) : f32[min(max(-3*@dp + 5, 0), 3), min(max(-2*@tp + 3, 0), 2)]
        %1 = input(position=1) : f32[min(max(-3*@dp + 5, 0), 3), min(max(-@tp + 1, 0), 1)]
        %2 = amax(%0; dims=[1]) : f32[min(max(-3*@dp + 5, 0), 3)]
        %3 = neg(%1) : f32[min(max(-3*@dp + 5, 0), 3), min(max(-@tp + 1, 0), 1)]
        return %2, %3
        """,
    )


def test_partial_plus_one():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Partial(sum)]
        %1 = const(value='1.0', dtype=f64) : f64
        %2 = add(%0, %1) : f32[8]
        return %2
        """,
        """
        local mesh[tp=2]
        %0 = input(position=0) : f32[8]
        %1 = all_reduce(%0; team='tp', ranks=2, op='sum') : f32[8]
        %2 = wait(%1) : f32[8]
        %3 = const(value='1.0', dtype=f64) : f64
        %4 = add(%2, %3) : f32[8]
        return %4
        """,
    )


def test_one_dim_on_two_axes():
    check_text(
        """
        global mesh[dp=2, tp=4]
        %0 = input(position=0) : f32[16, 3] @ [Shard(0), Shard(0)]
        %1 = neg(%0) : f32[16, 3] @ [Replicate, Shard(0)]
        return %1
        """,
        """
        local mesh[dp=2, tp=4]
        %0 = input(position=0) : f32[2, 3]
        %1 = neg(%0) : f32[2, 3]
        %2 = all_gather(%1; team='tp', ranks=4, dim=0, size=8) : f32[8, 3]
        %3 = wait(%2) : f32[8, 3]
        %4 = all_gather(%3; team='dp', ranks=2, dim=0, size=16) : f32[16, 3]
        %5 = wait(%4) : f32[16, 3]
        %6 = chunk(%5; team='tp', ranks=4, dim=0) : f32[4, 3]
        return %6
        """,
    )


def test_small_collectives_of_one_kind_are_one():
    """Two all_reduces and two reduce_scatters, each pair of other shapes; the max stays alone."""
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[4] @ [Partial(sum)]
        %1 = input(position=1) : f32[2, 3] @ [Partial(sum)]
        %2 = input(position=2) : f32[2] @ [Partial(max)]
        %3 = exp(%0) : f32[4] @ [Replicate]
        %4 = exp(%1) : f32[2, 3] @ [Replicate]
        %5 = exp(%2) : f32[2] @ [Replicate]
        return %3, %4, %5
        """,
        """
        local mesh[tp=2]
        %0 = input(position=0) : f32[4]
        %1 = input(position=1) : f32[2, 3]
        %2 = input(position=2) : f32[2]
        %3 = reshape(%0; shape=[1, 4]) : f32[1, 4]
        %4 = reshape(%1; shape=[1, 6]) : f32[1, 6]
        %5 = cat(%3, %4; dim=1) : f32[1, 10]
        %6 = all_reduce(%5; team='tp', ranks=2, op='sum') : f32[1, 10]
        %7 = wait(%6) : f32[1, 10]
        %8 = slice(%7; starts=[0, 0], ends=[1, 4], steps=[1, 1]) : f32[1, 4]
        %9 = reshape(%8; shape=[4]) : f32[4]
        %10 = exp(%9) : f32[4]
        %11 = slice(%7; starts=[0, 4], ends=[1, 10], steps=[1, 1]) : f32[1, 6]
        %12 = reshape(%11; shape=[2, 3]) : f32[2, 3]
        %13 = exp(%12) : f32[2, 3]
        %14 = all_reduce(%2; team='tp', ranks=2, op='max') : f32[2]
        %15 = wait(%14) : f32[2]
        %16 = exp(%15) : f32[2]
        return %10, %13, %16
        """,
    )


def test_an_even_strided_shard_is_gathered_at_once():
    check_text(
        """
        global mesh[dp=2, tp=4]
        %0 = input(position=0) : f32[16, 3] @ [StridedShard(0, 4), Shard(0)]
        %1 = neg(%0) : f32[16, 3] @ [Replicate, Shard(0)]
        return %1
        """,
        """
        local mesh[dp=2, tp=4]
        %0 = input(position=0) : f32[2, 3]
        %1 = neg(%0) : f32[2, 3]
        %2 = all_gather(%1; team='dp', ranks=2, dim=0, size=4) : f32[4, 3]
        %3 = wait(%2) : f32[4, 3]
        return %3
        """,
    )


def test_an_uneven_strided_shard():
    check_text(
        """
        global mesh[dp=2, tp=2]
        %0 = input(position=0) : f32[5] @ [StridedShard(0, 2), Replicate]
        %1 = neg(%0) : f32[5] @ [Replicate, Shard(0)]
        return %1
        """,
        """
        local mesh[dp=2, tp=2]
        %0 = input(position=0) : f32[min(max(-2*@dp + 3, 0), 2) + 1]
        %1 = neg(%0) : f32[min(max(-2*@dp + 3, 0), 2) + 1]
        %2 = all_gather(%1; team='dp', ranks=2, dim=0, size=5, split=2) : f32[5]
        %3 = wait(%2) : f32[5]
        %4 = chunk(%3; team='tp', ranks=2, dim=0) : f32[min(max(-3*@tp + 5, 0), 3)]
        return %4
        """,
    )


def test_symbolic_sizes():
    check_text(
        """
        global mesh[tp=4]
        %0 = input(position=0) : f32[s0, 8*s1] @ [Shard(1)]
        %1 = input(position=1) : f32[s0, 3] @ [Shard(0)]
        %2 = reshape(%0; shape=[s0, 8, s1]) : f32[s0, 8, s1]
        %3 = sum(%2; dims=[1]) : f32[s0, s1]
        %4 = exp(%1) : f32[s0, 3] @ [Replicate]
        return %3, %4
        """,
        """
        local mesh[tp=4]
        %0 = input(position=0) : f32[s0, 2*s1]
        %1 = input(position=1) : f32[min(ceildiv(s0, 4), max(-@tp*ceildiv(s0, 4) + s0, 0)), 3]
        %2 = reshape(%0; shape=[s0, 2, s1]) : f32[s0, 2, s1]
        %3 = sum(%2; dims=[1]) : f32[s0, s1]
        %4 = exp(%1) : f32[min(ceildiv(s0, 4), max(-@tp*ceildiv(s0, 4) + s0, 0)), 3]
        %5 = all_gather(%4; team='tp', ranks=4, dim=0, size=s0) : f32[s0, 3]
        %6 = wait(%5) : f32[s0, 3]
        return %3, %6
        """,
    )


def test_all_reduce_around_an_independent_node():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[8, 4] @ [Shard(1)]
        %1 = input(position=1) : f32[8] @ [Replicate]
        %2 = sum(%0; dims=[1]) : f32[8]
        %3 = exp(%1) : f32[8]
        %4 = rsqrt(%2) : f32[8]
        %5 = mul(%4, %3) : f32[8]
        return %5
        """,
        """
        local mesh[tp=2]
        %0 = input(position=0) : f32[8, 2]
        %1 = input(position=1) : f32[8]
        %2 = sum(%0; dims=[1]) : f32[8]
        %3 = all_reduce(%2; team='tp', ranks=2, op='sum') : f32[8]
        %4 = wait(%3) : f32[8]
        %5 = rsqrt(%4) : f32[8]
        %6 = exp(%1) : f32[8]
        %7 = mul(%5, %6) : f32[8]
        return %7
        """,
    )


def test_column_parallel_linear():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : bf16[4, 8] @ [Replicate]
        %1 = input(position=1) : bf16[6, 8] @ [Shard(0)]
        %2 = input(position=2) : bf16[6] @ [Shard(0)]
        %3 = linear(%0, %1, %2) : bf16[4, 6]
        return %3
        """,
        """
        local mesh[tp=2]
        %0 = input(position=0) : bf16[4, 8]
        %1 = input(position=1) : bf16[3, 8]
        %2 = input(position=2) : bf16[3]
        %3 = linear(%0, %1, %2) : bf16[4, 3]
        return %3
        """,
    )


def test_row_parallel_linear_adds_its_bias_once():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : bf16[4, 8] @ [Shard(1)]
        %1 = input(position=1) : bf16[6, 8] @ [Shard(1)]
        %2 = input(position=2) : bf16[6] @ [Replicate]
        %3 = linear(%0, %1, %2) : bf16[4, 6] @ [Shard(0)]
        return %3
        """,
        """
        local mesh[tp=2]
        %0 = input(position=0) : bf16[4, 4]
        %1 = input(position=1) : bf16[6, 4]
        %2 = input(position=2) : bf16[6]
        %3 = keep_first(%2; team='tp', ranks=2, op='sum') : bf16[6]
        %4 = linear(%0, %1, %3) : bf16[4, 6]
        %5 = reduce_scatter(%4; team='tp', ranks=2, dim=0, size=4, op='sum') : bf16[2, 6]
        %6 = wait(%5) : bf16[2, 6]
        return %6
        """,
    )


def test_variance_over_a_sharded_dim():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[4, 6] @ [Shard(1)]
        %1 = sum(%0; dims=[1]) : f32[4]
        %2 = const(value='6', dtype=i64) : i64
        %3 = div(%1, %2) : f32[4]
        %4 = broadcast_in_dim(%3; shape=[4, 6], dims=[0]) : f32[4, 6]
        %5 = sub(%0, %4) : f32[4, 6]
        %6 = mul(%5, %5) : f32[4, 6]
        %7 = sum(%6; dims=[1]) : f32[4]
        %8 = const(value='5', dtype=i64) : i64
        %9 = div(%7, %8) : f32[4] @ [Replicate]
        return %9
        """,
        """
        local mesh[tp=2]
        %0 = input(position=0) : f32[4, 3]
        %1 = sum(%0; dims=[1]) : f32[4]
        %2 = const(value='6', dtype=i64) : i64
        %3 = div(%1, %2) : f32[4]
        %4 = all_reduce(%3; team='tp', ranks=2, op='sum') : f32[4]
        %5 = wait(%4) : f32[4]
        %6 = broadcast_in_dim(%5; shape=[4, 3], dims=[0]) : f32[4, 3]
        %7 = sub(%0, %6) : f32[4, 3]
        %8 = mul(%7, %7) : f32[4, 3]
        %9 = sum(%8; dims=[1]) : f32[4]
        %10 = all_reduce(%9; team='tp', ranks=2, op='sum') : f32[4]
        %11 = wait(%10) : f32[4]
        %12 = const(value='5', dtype=i64) : i64
        %13 = div(%11, %12) : f32[4]
        return %13
        """,
    )


def test_local_tensors_in_and_out():
    check_text(
        """
        global mesh[dp=2]
        %0 = input(position=0) : f32[s0, 4]
        %1 = const(value='2.0', dtype=f64) : f64
        %2 = mul(%0, %1) : f32[s0, 4]
        %3 = from_local(%2; shape=[2*s0, 4], placements=[Shard(0)]) : f32[2*s0, 4]
        %4 = sum(%3; dims=[0]) : f32[4] @ [Replicate]
        %5 = to_local(%4; shape=[4]) : f32[4]
        %6 = full(%1; shape=[4], dtype=f32) : f32[4]
        %7 = add(%5, %6) : f32[4]
        return %7
        """,
        """
        local mesh[dp=2]
        %0 = input(position=0) : f32[s0, 4]
        %1 = const(value='2.0', dtype=f64) : f64
        %2 = mul(%0, %1) : f32[s0, 4]
        %3 = sum(%2; dims=[0]) : f32[4]
        %4 = all_reduce(%3; team='dp', ranks=2, op='sum') : f32[4]
        %5 = wait(%4) : f32[4]
        %6 = full(%1; shape=[4], dtype=f32) : f32[4]
        %7 = add(%5, %6) : f32[4]
        return %7
        """,
    )


def test_uniform_draws_the_block_of_the_whole():
    check_text(
        """
        global mesh[dp=2, tp=2]
        %0 = input(position=0) : f32[5, 8] @ [Shard(0), Shard(1)]
        %1 = rng_state(draw=0, count=40) : i64[] | i64[]
        %2 = uniform(%1, %1.1; shape=[5, 8], dtype=f32) : f32[5, 8] @ [Shard(0), Shard(1)]
        %3 = mul(%0, %2) : f32[5, 8]
        return %3
        """,
        """
        local mesh[dp=2, tp=2]
        %0 = input(position=0) : f32[min(max(-3*@dp + 5, 0), 3), 4]
        %1 = rng_state(draw=0, count=40) : i64[] | i64[]
        %2 = uniform(%1, %1.1; shape=[min(max(-3*@dp + 5, 0), 3), 4], dtype=f32, whole=[5, 8], starts=[min(3*@dp, 5), 4*@tp]) : f32[min(max(-3*@dp + 5, 0), 3), 4]
        %3 = mul(%0, %2) : f32[min(max(-3*@dp + 5, 0), 3), 4]
        return %3
        """,
    )


def test_factories_are_made_where_they_are_needed():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : i64[5, 8] @ [Shard(0)]
        %1 = const(value='3', dtype=i64) : i64
        %2 = iota(%1, %1; shape=[5], dtype=i64) : i64[5]
        %3 = broadcast_in_dim(%2; shape=[5, 8], dims=[0]) : i64[5, 8]
        %4 = add(%0, %3) : i64[5, 8]
        return %4
        """,
        """
        local mesh[tp=2]
        %0 = input(position=0) : i64[min(max(-3*@tp + 5, 0), 3), 8]
        %1 = const(value='3', dtype=i64) : i64
        %2 = size(size=min(3*@tp, 5)) : i64
        %3 = mul(%2, %1) : i64
        %4 = add(%1, %3) : i64
        %5 = iota(%4, %1; shape=[min(max(-3*@tp + 5, 0), 3)], dtype=i64) : i64[min(max(-3*@tp + 5, 0), 3)]
        %6 = broadcast_in_dim(%5; shape=[min(max(-3*@tp + 5, 0), 3), 8], dims=[0]) : i64[min(max(-3*@tp + 5, 0), 3), 8]
        %7 = add(%0, %6) : i64[min(max(-3*@tp + 5, 0), 3), 8]
        return %7
        """,
    )


def test_sharded_weight_rows():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : i64[3] @ [Replicate]
        %1 = input(position=1) : f32[10, 4] @ [Shard(0)]
        %2 = embedding(%0, %1) : f32[3, 4]
        return %2
        """,
        """
        local mesh[tp=2]
        %0 = input(position=0) : i64[3]
        %1 = input(position=1) : f32[5, 4]
        %2 = size(size=5*@tp) : i64
        %3 = sub(%0, %2) : i64[3]
        %4 = const(value='0', dtype=i64) : i64
        %5 = ge(%3, %4) : bool[3]
        %6 = const(value='5', dtype=i64) : i64
        %7 = lt(%3, %6) : bool[3]
        %8 = logical_and(%5, %7) : bool[3]
        %9 = broadcast_in_dim(%8; shape=[3, 4], dims=[0]) : bool[3, 4]
        %10 = where(%8, %3, %4) : i64[3]
        %11 = embedding(%10, %1) : f32[3, 4]
        %12 = where(%9, %11, %4) : f32[3, 4]
        return %12
        """,
    )


def test_a_written_input_keeps_its_placements():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[4, 4] @ [Shard(0)]
        %1 = input(position=1) : f32[4, 4] @ [Replicate]
        %2 = exp(%1) : f32[4, 4]
        return %2 -> %0
        """,
        """
        local mesh[tp=2]
        %0 = input(position=0) : f32[2, 4]
        %1 = input(position=1) : f32[4, 4]
        %2 = exp(%1) : f32[4, 4]
        %3 = chunk(%2; team='tp', ranks=2, dim=0) : f32[2, 4]
        return %3 -> %0
        """,
    )


def started(first: str, second: str, wanted: str) -> list[str]:
    """The collectives that bring two inputs to the placement ``wanted``."""
    local = localize(
        reshard(
            propagate(
                parse(
                    f"""global mesh[tp=2]
                    %0 = input(position=0) : {first}
                    %1 = input(position=1) : {second}
                    %2 = reshard(%0; placements=[{wanted}]) : {first.split(" @ ")[0]} @ [{wanted}]
                    %3 = reshard(%1; placements=[{wanted}]) : {second.split(" @ ")[0]} @ [{wanted}]
                    return %2, %3"""
                )
            )
        )
    )
    return [n.op for n in verify(local, "localize").nodes if row(n.op).kind == "start"]


def test_which_collectives_go_together():
    total, whole = "Partial(sum)", "Replicate"
    assert started("f32[4, 3] @ [Shard(0)]", "f32[6] @ [Shard(0)]", whole) == ["all_gather"]
    assert started(f"f32[4, 3] @ [{total}]", f"f32[6] @ [{total}]", "Shard(0)") == [
        "reduce_scatter"
    ]
    # Uneven parts have no rows of one length; other dtypes, other kinds and large ones stay apart.
    assert len(started("f32[5, 3] @ [Shard(0)]", "f32[6] @ [Shard(0)]", whole)) == 2
    assert len(started(f"f32[5] @ [{total}]", f"bf16[5] @ [{total}]", whole)) == 2
    assert len(started(f"f32[5] @ [{total}]", "f32[5] @ [Partial(max)]", whole)) == 2
    assert len(started(f"f32[512, 512] @ [{total}]", f"f32[5] @ [{total}]", whole)) == 2
    assert len(started(f"f32[5] @ [{total}]", f"f32[7, 3] @ [{total}]", whole)) == 1
