"""The table of changes: which steps, in which order, at what cost."""

import pytest

from thunder_mdfuse.ir.text import parse_placement, split
from thunder_mdfuse.ir.types import Mesh, MeshAxis
from thunder_mdfuse.sharding.changes import debt, received_bytes, route

ONE = Mesh((MeshAxis("tp", 4),))
TWO = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 4)))
KIB = 1024


def placements(text: str):
    return tuple(parse_placement(p) for p in split(text))


def steps(mesh: Mesh, shape, found: str, wanted: str) -> str:
    found_, wanted_ = placements(found), placements(wanted)
    return " ".join(
        f"{step.op}@{step.attrs.team}" for step in route(shape, 4, mesh, found_, wanted_).steps
    )


def received(mesh: Mesh, shape, found: str, wanted: str) -> float:
    """Bytes that each rank receives."""
    way = route(shape, 4, mesh, placements(found), placements(wanted))
    return received_bytes(way, mesh)


ONE_AXIS = [
    # f32[16, 16] is 1 KiB.
    ("Shard(0)", "Replicate", "all_gather@tp", 0.75 * KIB),
    ("Shard(0)", "Shard(1)", "all_to_all@tp", 0.75 * KIB / 4),
    ("Shard(0)", "Partial(sum)", "all_gather@tp keep_first@tp", 0.75 * KIB),
    ("Replicate", "Shard(1)", "chunk@tp", 0),
    ("Replicate", "StridedShard(1, 2)", "chunk@tp", 0),
    ("Replicate", "Partial(sum)", "keep_first@tp", 0),
    ("Replicate", "Partial(product)", "keep_first@tp", 0),
    ("Replicate", "Partial(avg)", "", 0),
    ("Replicate", "Partial(max)", "", 0),
    ("Partial(sum)", "Replicate", "all_reduce@tp", 1.5 * KIB),
    ("Partial(avg)", "Replicate", "all_reduce@tp", 1.5 * KIB),
    ("Partial(min)", "Shard(1)", "reduce_scatter@tp", 0.75 * KIB),
    ("Partial(sum)", "StridedShard(0, 2)", "all_reduce@tp chunk@tp", 1.5 * KIB),
    ("Partial(sum)", "Partial(avg)", "multiply@tp", 0),
    ("Partial(max)", "Partial(sum)", "all_reduce@tp keep_first@tp", 1.5 * KIB),
    ("StridedShard(0, 2)", "Replicate", "all_gather@tp", 0.75 * KIB),
    ("StridedShard(0, 2)", "Shard(0)", "all_gather@tp chunk@tp", 0.75 * KIB),
]


@pytest.mark.parametrize(("found", "wanted", "expected", "size"), ONE_AXIS)
def test_one_axis(found, wanted, expected, size):
    assert steps(ONE, (16, 16), found, wanted) == expected
    assert received(ONE, (16, 16), found, wanted) == size


TWO_AXES = [
    # The inner cut is undone first, and put back.
    ("Shard(0), Shard(0)", "Replicate, Replicate", "all_gather@tp all_gather@dp"),
    ("Shard(0), Shard(0)", "Shard(0), Replicate", "all_gather@tp"),
    ("Shard(0), Shard(0)", "Replicate, Shard(0)", "all_gather@tp all_gather@dp chunk@tp"),
    ("Replicate, Shard(0)", "Shard(0), Shard(0)", "all_gather@tp chunk@dp chunk@tp"),
    # Even strided cuts are the plain ones in the other order: one gather.
    ("StridedShard(0, 4), Shard(0)", "Replicate, Shard(0)", "all_gather@dp"),
    ("StridedShard(0, 4), Shard(0)", "Replicate, Replicate", "all_gather@dp all_gather@tp"),
    ("Replicate, Shard(0)", "StridedShard(0, 4), Shard(0)", "chunk@dp"),
    # What makes the value smaller comes before what depends on its size.
    ("Partial(sum), Replicate", "Replicate, Shard(0)", "chunk@tp all_reduce@dp"),
    ("Partial(sum), Partial(sum)", "Replicate, Shard(1)", "reduce_scatter@tp all_reduce@dp"),
    # An inner cut need not move when another dim changes beneath it.
    ("Shard(0), Shard(1)", "Replicate, Shard(1)", "all_gather@dp"),
]


@pytest.mark.parametrize(("found", "wanted", "expected"), TWO_AXES)
def test_two_axes(found, wanted, expected):
    assert steps(TWO, (16, 16), found, wanted) == expected


SQUARE = Mesh((MeshAxis("dp", 3), MeshAxis("tp", 3), MeshAxis("cp", 2)))
HANDED_OUT = [
    # To another axis of as many positions: each needs one chunk, not all of them.
    ("Shard(0), Replicate, Replicate", "Replicate, Shard(0), Replicate", "broadcast@dp", 1),
    ("Replicate, Shard(1), Replicate", "Shard(1), Replicate, Replicate", "broadcast@tp", 1),
    ("Shard(0), Replicate, Shard(0)", "Replicate, Shard(0), Shard(0)", None, None),
    # An axis that waits for a reduction, or has another size, cannot take the chunk.
    ("Shard(0), Partial(sum), Replicate", "Replicate, Shard(0), Replicate", None, None),
    (
        "Shard(0), Replicate, Replicate",
        "Replicate, Replicate, Shard(0)",
        "all_gather@dp chunk@cp",
        2,
    ),
]


@pytest.mark.parametrize(("found", "wanted", "expected", "chunks"), HANDED_OUT)
def test_a_shard_that_moves_to_another_axis_is_broadcast(found, wanted, expected, chunks):
    if expected is None:
        assert "broadcast" not in steps(SQUARE, (8, 9), found, wanted).split()[0]
        return
    assert steps(SQUARE, (8, 9), found, wanted) == expected
    # Uneven shards count as the longest, which all positions send: 3 of 8 and 3 of 9 rows.
    assert received(SQUARE, (8, 9), found, wanted) == chunks * 3 * (8 if "1" in found else 9) * 4


def test_the_one_position_that_has_a_dim_of_size_1_hands_it_out():
    assert steps(ONE, (1, 16), "Shard(0)", "Replicate") == "broadcast@tp"
    assert received(ONE, (1, 16), "Shard(0)", "Replicate") == 64
    assert steps(ONE, (2, 16), "Shard(0)", "Replicate") == "all_gather@tp"


def test_a_product_is_not_made_pending_before_a_sum_is_done():
    """keep_first puts ones elsewhere, and ones are added up by a sum."""
    found, wanted = "Replicate, Partial(sum)", "Partial(product), Shard(0)"
    assert steps(TWO, (16, 16), found, wanted) == "reduce_scatter@tp keep_first@dp"


def test_axes_that_swap_dims_do_not_gather_everything():
    found, wanted = "Shard(0), Shard(1)", "Shard(1), Shard(0)"
    whole = received(TWO, (16, 16), found, "Replicate, Replicate")
    assert received(TWO, (16, 16), found, wanted) < whole


def test_an_uneven_strided_shard_is_gathered_cut_by_cut():
    found, wanted = "StridedShard(0, 4), Shard(0)", "Replicate, Shard(0)"
    assert steps(TWO, (15, 3), found, wanted) == "all_gather@tp all_gather@dp chunk@tp"


def test_axes_of_one_position_need_no_steps():
    mesh = Mesh((MeshAxis("dp", 1), MeshAxis("tp", 4)))
    assert steps(mesh, (8, 8), "Partial(sum), Shard(0)", "Shard(1), Shard(0)") == ""


def test_sizes_of_steps_follow_the_cuts_that_are_left():
    way = route(
        (16, 3), 4, TWO, placements("Shard(0), Shard(0)"), placements("Replicate, Replicate")
    )
    assert [step.attrs.size for step in way.steps] == [8, 16]


def test_debt_is_the_reduction_put_off():
    replicate, pending = placements("Replicate"), placements("Partial(sum)")
    assert debt((16, 16), 4, ONE, replicate, pending) == 1.5 * KIB * ONE.ranks**2
    assert debt((16, 16), 4, ONE, pending, replicate) == 0
    assert debt((16, 16), 4, ONE, pending, pending) == 0
