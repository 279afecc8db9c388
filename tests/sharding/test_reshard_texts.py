"""Before and after propagate and reshard."""

from textwrap import dedent

from thunder_mdfuse.ir.text import parse, render
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.sharding.propagate import propagate
from thunder_mdfuse.sharding.reshard import check, reshard


def check_text(before: str, expected: str) -> None:
    placed = verify(propagate(parse(before)), "propagate")
    explicit = check(verify(reshard(placed), "reshard"))
    assert render(explicit) == dedent(expected).lstrip()
    # What a stage has done it does not do again.
    assert propagate(placed) == placed
    assert reshard(propagate(explicit)) == explicit


def test_relu_of_partial():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Partial(sum)]
        %1 = const(value='0.0', dtype=f64) : f64
        %2 = maximum(%0, %1) : f32[8]
        return %2
        """,
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Partial(sum)]
        %1 = reshard(%0; placements=[Replicate]) : f32[8] @ [Replicate]
        %2 = const(value='0.0', dtype=f64) : f64
        %3 = maximum(%1, %2) : f32[8] @ [Replicate]
        return %3
        """,
    )


def test_row_parallel_linear():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : bf16[4, 8] @ [Shard(1)]
        %1 = input(position=1) : bf16[6, 8] @ [Shard(1)]
        %2 = linear(%0, %1) : bf16[4, 6] @ [Replicate]
        return %2
        """,
        """
        global mesh[tp=2]
        %0 = input(position=0) : bf16[4, 8] @ [Shard(1)]
        %1 = input(position=1) : bf16[6, 8] @ [Shard(1)]
        %2 = linear(%0, %1) : bf16[4, 6] @ [Partial(sum)]
        %3 = reshard(%2; placements=[Replicate]) : bf16[4, 6] @ [Replicate]
        return %3
        """,
    )


def test_linear_ops_keep_a_pending_sum():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[2, 4] @ [Partial(sum)]
        %1 = input(position=1) : f32[2, 4] @ [Replicate]
        %2 = add(%0, %0) : f32[2, 4]
        %3 = mul(%2, %1) : f32[2, 4]
        %4 = permute(%3; dims=[1, 0]) : f32[4, 2]
        %5 = reshape(%4; shape=[8]) : f32[8]
        %6 = cast(%5; dtype=f64) : f64[8]
        %7 = sum(%6; dims=[0]) : f64[]
        return %7
        """,
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[2, 4] @ [Partial(sum)]
        %1 = input(position=1) : f32[2, 4] @ [Replicate]
        %2 = add(%0, %0) : f32[2, 4] @ [Partial(sum)]
        %3 = mul(%2, %1) : f32[2, 4] @ [Partial(sum)]
        %4 = permute(%3; dims=[1, 0]) : f32[4, 2] @ [Partial(sum)]
        %5 = reshape(%4; shape=[8]) : f32[8] @ [Partial(sum)]
        %6 = cast(%5; dtype=f64) : f64[8] @ [Partial(sum)]
        %7 = sum(%6; dims=[0]) : f64[] @ [Partial(sum)]
        return %7
        """,
    )


def test_partial_times_partial():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Partial(sum)]
        %1 = input(position=1) : f32[8] @ [Partial(sum)]
        %2 = mul(%0, %1) : f32[8]
        %3 = mul(%0, %0) : f32[8]
        return %2, %3
        """,
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Partial(sum)]
        %1 = input(position=1) : f32[8] @ [Partial(sum)]
        %2 = reshard(%1; placements=[Replicate]) : f32[8] @ [Replicate]
        %3 = mul(%0, %2) : f32[8] @ [Partial(sum)]
        %4 = reshard(%0; placements=[Replicate]) : f32[8] @ [Replicate]
        %5 = mul(%4, %4) : f32[8] @ [Replicate]
        return %3, %5
        """,
    )


def test_changes_of_changes_are_one_change():
    check_text(
        """
        global mesh[tp=4]
        %0 = input(position=0) : f32[8, 8] @ [Shard(0)]
        %1 = reshard(%0; placements=[Replicate]) : f32[8, 8] @ [Replicate]
        %2 = reshard(%1; placements=[Shard(1)]) : f32[8, 8] @ [Shard(1)]
        %3 = neg(%2) : f32[8, 8]
        return %3
        """,
        """
        global mesh[tp=4]
        %0 = input(position=0) : f32[8, 8] @ [Shard(0)]
        %1 = reshard(%0; placements=[Shard(1)]) : f32[8, 8] @ [Shard(1)]
        %2 = neg(%1) : f32[8, 8] @ [Shard(1)]
        return %2
        """,
    )


def test_beside_an_all_reduce_a_chunk_is_free():
    check_text(
        """
        global mesh[tp=4]
        %0 = input(position=0) : f32[8, 8] @ [Partial(sum)]
        %1 = exp(%0) : f32[8, 8] @ [Shard(0)]
        %2 = exp(%0) : f32[8, 8] @ [Replicate]
        return %1, %2
        """,
        """
        global mesh[tp=4]
        %0 = input(position=0) : f32[8, 8] @ [Partial(sum)]
        %1 = reshard(%0; placements=[Replicate]) : f32[8, 8] @ [Replicate]
        %2 = reshard(%1; placements=[Shard(0)]) : f32[8, 8] @ [Shard(0)]
        %3 = exp(%2) : f32[8, 8] @ [Shard(0)]
        %4 = exp(%1) : f32[8, 8] @ [Replicate]
        return %3, %4
        """,
    )


def test_a_reduction_comes_before_the_broadcast():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[4, 6] @ [Shard(1)]
        %1 = amax(%0; dims=[1]) : f32[4]
        %2 = broadcast_in_dim(%1; shape=[4, 6], dims=[0]) : f32[4, 6]
        %3 = sub(%0, %2) : f32[4, 6]
        return %3
        """,
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[4, 6] @ [Shard(1)]
        %1 = amax(%0; dims=[1]) : f32[4] @ [Partial(max)]
        %2 = reshard(%1; placements=[Replicate]) : f32[4] @ [Replicate]
        %3 = broadcast_in_dim(%2; shape=[4, 6], dims=[0]) : f32[4, 6] @ [Shard(1)]
        %4 = sub(%0, %3) : f32[4, 6] @ [Shard(1)]
        return %4
        """,
    )


def test_causal_mask():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[4, 6, 6] @ [Shard(1)]
        %1 = const(value='0', dtype=i64) : i64
        %2 = const(value='1', dtype=i64) : i64
        %3 = iota(%1, %2; shape=[6], dtype=i64) : i64[6]
        %4 = broadcast_in_dim(%3; shape=[4, 6, 6], dims=[1]) : i64[4, 6, 6]
        %5 = broadcast_in_dim(%3; shape=[4, 6, 6], dims=[2]) : i64[4, 6, 6]
        %6 = ge(%4, %5) : bool[4, 6, 6]
        %7 = const(value='-inf', dtype=f64) : f64
        %8 = where(%6, %0, %7) : f32[4, 6, 6]
        return %8
        """,
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[4, 6, 6] @ [Shard(1)]
        %1 = const(value='0', dtype=i64) : i64
        %2 = const(value='1', dtype=i64) : i64
        %3 = iota(%1, %2; shape=[6], dtype=i64) : i64[6] @ [Shard(0)]
        %4 = broadcast_in_dim(%3; shape=[4, 6, 6], dims=[1]) : i64[4, 6, 6] @ [Shard(1)]
        %5 = iota(%1, %2; shape=[6], dtype=i64) : i64[6] @ [Replicate]
        %6 = broadcast_in_dim(%5; shape=[4, 6, 6], dims=[2]) : i64[4, 6, 6] @ [Shard(1)]
        %7 = ge(%4, %6) : bool[4, 6, 6] @ [Shard(1)]
        %8 = const(value='-inf', dtype=f64) : f64
        %9 = where(%7, %0, %8) : f32[4, 6, 6] @ [Shard(1)]
        return %9
        """,
    )


def test_dropout():
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[6, 8] @ [Shard(0)]
        %1 = rng_state(draw=0, count=48) : i64[] | i64[]
        %2 = uniform(%1, %1.1; shape=[6, 8], dtype=f32) : f32[6, 8]
        %3 = const(value='0.1', dtype=f64) : f64
        %4 = ge(%2, %3) : bool[6, 8]
        %5 = const(value='0', dtype=f64) : f64
        %6 = where(%4, %0, %5) : f32[6, 8]
        return %6
        """,
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[6, 8] @ [Shard(0)]
        %1 = rng_state(draw=0, count=48) : i64[] @ [Replicate] | i64[] @ [Replicate]
        %2 = uniform(%1, %1.1; shape=[6, 8], dtype=f32) : f32[6, 8] @ [Shard(0)]
        %3 = const(value='0.1', dtype=f64) : f64
        %4 = ge(%2, %3) : bool[6, 8] @ [Shard(0)]
        %5 = const(value='0', dtype=f64) : f64
        %6 = where(%4, %0, %5) : f32[6, 8] @ [Shard(0)]
        return %6
        """,
    )


def test_one_dim_on_two_axes():
    check_text(
        """
        global mesh[dp=2, tp=4]
        %0 = input(position=0) : f32[16, 3] @ [Shard(0), Shard(0)]
        %1 = neg(%0) : f32[16, 3] @ [Replicate, Shard(0)]
        %2 = exp(%0) : f32[16, 3] @ [Shard(0), Replicate]
        return %1, %2
        """,
        """
        global mesh[dp=2, tp=4]
        %0 = input(position=0) : f32[16, 3] @ [Shard(0), Shard(0)]
        %1 = neg(%0) : f32[16, 3] @ [Shard(0), Shard(0)]
        %2 = reshard(%1; placements=[Replicate, Shard(0)]) : f32[16, 3] @ [Replicate, Shard(0)]
        %3 = exp(%0) : f32[16, 3] @ [Shard(0), Shard(0)]
        %4 = reshard(%3; placements=[Shard(0), Replicate]) : f32[16, 3] @ [Shard(0), Replicate]
        return %2, %4
        """,
    )


def test_gradients_of_q_k_and_v_are_added_and_then_reduced():
    """Each reduced by itself, as a trace with explicit changes has it."""
    check_text(
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Partial(sum)]
        %1 = input(position=1) : f32[8] @ [Partial(sum)]
        %2 = input(position=2) : f32[8] @ [Partial(sum)]
        %3 = reshard(%0; placements=[Replicate]) : f32[8] @ [Replicate]
        %4 = reshard(%1; placements=[Replicate]) : f32[8] @ [Replicate]
        %5 = reshard(%2; placements=[Replicate]) : f32[8] @ [Replicate]
        %6 = add(%3, %4) : f32[8] @ [Replicate]
        %7 = add(%6, %5) : f32[8] @ [Replicate]
        return %7
        """,
        """
        global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Partial(sum)]
        %1 = input(position=1) : f32[8] @ [Partial(sum)]
        %2 = input(position=2) : f32[8] @ [Partial(sum)]
        %3 = add(%0, %1) : f32[8] @ [Partial(sum)]
        %4 = add(%3, %2) : f32[8] @ [Partial(sum)]
        %5 = reshard(%4; placements=[Replicate]) : f32[8] @ [Replicate]
        return %5
        """,
    )


def test_what_is_read_reduced_elsewhere_is_reduced():
    text = """
        global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Partial(sum)]
        %1 = input(position=1) : f32[8] @ [Partial(sum)]
        %2 = reshard(%0; placements=[Replicate]) : f32[8] @ [Replicate]
        %3 = reshard(%1; placements=[Replicate]) : f32[8] @ [Replicate]
        %4 = add(%2, %3) : f32[8] @ [Replicate]
        return %2, %4
        """
    explicit = reshard(propagate(parse(text)))
    assert [n.op for n in explicit.nodes].count("reshard") == 2
