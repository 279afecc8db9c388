"""What a user can get wrong about placements: one clear error each."""

import pytest

from thunder_mdfuse.errors import ShardingError
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.sharding.localize import localize
from thunder_mdfuse.sharding.propagate import propagate
from thunder_mdfuse.sharding.reshard import check


def refused(text: str, *parts: str, stage=propagate) -> None:
    with pytest.raises(ShardingError) as e:
        stage(parse(text))
    for part in parts:
        assert part in str(e.value)


def test_a_plain_tensor_beside_one_of_the_mesh():
    refused(
        """global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Shard(0)]
        %1 = input(position=1) : f32[8]
        %2 = add(%0, %1) : f32[8]
        return %2""",
        "add %2",
        "mesh[tp=2]",
        "f32[8] @ [Shard(0)], f32[8]",
        "from_local",
        "to_local",
    )


def test_a_result_pinned_where_all_is_plain():
    refused(
        """global mesh[tp=2]
        %0 = input(position=0) : f32[8]
        %1 = neg(%0) : f32[8] @ [Shard(0)]
        return %1""",
        "neg %1",
        "plain tensors only",
        "from_local",
    )


def test_too_few_placements():
    refused(
        """global mesh[dp=2, tp=2]
        %0 = input(position=0) : f32[8] @ [Shard(0)]
        return %0""",
        "input %0 has 1 placements",
        "mesh[dp=2, tp=2]",
    )


def test_a_dim_that_is_not_there():
    refused(
        """global mesh[dp=2, tp=2]
        %0 = input(position=0) : f32[8] @ [Replicate, Shard(1)]
        return %0""",
        "mesh axis 'tp'",
        "Shard(1)",
        "from 0 to 0",
    )


def test_pending_reductions_whose_order_would_matter():
    refused(
        """global mesh[dp=2, tp=2]
        %0 = input(position=0) : f32[8] @ [Partial(sum), Partial(max)]
        return %0""",
        "'dp': sum",
        "'tp': max",
        "Replicate first",
    )


def test_pins_are_checked_too():
    refused(
        """global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Shard(0)]
        %1 = neg(%0) : f32[8] @ [Shard(3)]
        return %1""",
        "neg %1, result 0",
        "Shard(3)",
    )


def test_a_local_tensor_of_another_shape():
    refused(
        """global mesh[tp=2]
        %0 = input(position=0) : f32[3]
        %1 = from_local(%0; shape=[8], placements=[Shard(0)]) : f32[8] @ [Shard(0)]
        return %1""",
        "from_local %1",
        "f32[3]",
        "shape [4]",
        stage=localize,
    )


def test_check_names_op_axis_and_placements():
    refused(
        """global mesh[dp=2, tp=2]
        %0 = input(position=0) : f32[8, 4] @ [Shard(0), Shard(1)]
        %1 = input(position=1) : f32[8, 4] @ [Shard(0), Replicate]
        %2 = add(%0, %1) : f32[8, 4] @ [Shard(0), Shard(1)]
        return %2""",
        "add %2, operand 1, mesh axis 'tp'",
        "found Replicate, needed Shard(1)",
        "insert a reshard",
        stage=check,
    )


def test_without_a_mesh_nothing_changes_but_the_level():
    fusion = parse("global\n%0 = input(position=0) : f32[8]\n%1 = neg(%0) : f32[8]\nreturn %1")
    assert propagate(fusion) == fusion
    assert localize(fusion).nodes == fusion.nodes
    assert localize(fusion).level == "local"


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("f8e4m3[8] @ [Partial(sum)]", "cast to bf16 or f32 first"),
        ("f8e5m2[8] @ [Partial(product)]", "cast to bf16 or f32 first"),
        ("i64[8] @ [Partial(avg)]", "use Partial(sum), or cast first"),
        ("c64[8] @ [Partial(max)]", "complex numbers have no order"),
    ],
)
def test_reductions_that_a_dtype_has_not(kind, remedy):
    text = f"global mesh[tp=2]\n%0 = input(position=0) : {kind}\nreturn %0"
    refused(text, "input %0", "is not done", kind, remedy)


def test_f8_is_never_summed():
    """A sum is reduced before it is made 8 bits wide, and so is one that is asked for later."""
    fusion = propagate(
        parse(
            """global mesh[tp=2]
            %0 = input(position=0) : f32[8] @ [Partial(sum)]
            %1 = cast(%0; dtype=f8e4m3) : f8e4m3[8]
            return %1"""
        )
    )
    assert str(fusion.tensor(fusion.outputs[0].value)) == "f8e4m3[8] @ [Replicate]"
