"""Meshes and loops of a definition, read as placements; no processes."""

from typing import Any

import pytest
import torch
from direct.checks import rebuilt

from thunder_mdfuse import DataType, FusionDefinition, ParallelType
from thunder_mdfuse.direct.mesh import DeviceMesh, placements
from thunder_mdfuse.errors import DefinitionError

X, Y, Z = ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z


def shown(define: Any, mesh: DeviceMesh, shape: Any = (-1, -1)) -> str:
    with FusionDefinition() as fd:
        t = fd.define_tensor(shape)
        t.set_device_mesh(mesh)
        define(t)
    return ", ".join(map(str, placements(t.loops, mesh.shape, t.type.shape)))


ONE, TWO = DeviceMesh([0, 1]), DeviceMesh([[0, 1, 2], [3, 4, 5]])


def outer(t: Any, axis: int, factor: int, parallel: ParallelType) -> None:
    t.outer_split(axis, factor)
    t.axis(axis).parallelize(parallel)


def test_loops_are_placements() -> None:
    assert shown(lambda t: None, TWO) == "Replicate, Replicate"
    assert shown(lambda t: outer(t, 0, 2, X), ONE) == "Shard(0)"
    assert shown(lambda t: outer(t, 1, 3, X), TWO) == "Replicate, Shard(1)"
    assert shown(lambda t: outer(t, 1, 2, Y), TWO) == "Shard(1), Replicate"
    assert shown(lambda t: (outer(t, 1, 3, X), outer(t, 0, 2, Y)), TWO) == "Shard(0), Shard(1)"
    # One dim over both axes, with either one outside.
    assert shown(lambda t: (outer(t, 0, 2, Y), outer(t, 1, 3, X)), TWO) == "Shard(0), Shard(0)"
    strided = "StridedShard(0, 3), Shard(0)"
    assert shown(lambda t: (outer(t, 0, 3, X), outer(t, 1, 2, Y)), TWO) == strided
    # Two halves of a merged projection, each spread over the ranks.
    assert shown(lambda t: (t.outer_split(0, 2), outer(t, 1, 2, X)), ONE) == "StridedShard(0, 2)"
    # A dim that has as many elements as there are ranks.
    assert shown(lambda t: t.axis(0).parallelize(X), ONE, (2, -1)) == "Shard(0)"


def test_an_inner_split_deals_out_elements() -> None:
    def inner(t: Any) -> None:
        t.inner_split(0, 2)
        t.axis(1).parallelize(X)

    assert shown(inner, ONE, (8, -1)) == "StridedShard(0, 4)"
    with pytest.raises(DefinitionError, match="size is not known"):
        shown(inner, ONE)


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda t: outer(t, 0, 3, X), "3 iterations is parallelized over a mesh axis of 2 ranks"),
        (lambda t: outer(t, 0, 2, Y), "mesh_y is no axis of a mesh of 1 axes"),
        (lambda t: (outer(t, 0, 2, X), outer(t, 2, 2, X)), "mesh_x is taken by another axis"),
        (lambda t: t.axis(0).parallelize(ParallelType.block_x), "schedules a kernel by hand"),
        (lambda t: (outer(t, 0, 2, X), t.outer_split(0, 2)), "split first"),
        (lambda t: t.outer_split(2, 2), "axis 2 found, the tensor has 2 axes"),
        (lambda t: t.outer_split(0, 0), "a factor of at least 1"),
    ],
)
def test_loops_that_are_refused(define: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        shown(define, ONE)


def test_a_mesh_is_a_grid_of_ranks() -> None:
    assert (TWO.shape, TWO.size) == ((2, 3), 6)
    assert DeviceMesh(torch.arange(6).view(2, 3)) == TWO
    assert hash(DeviceMesh([0, 1])) == hash(ONE) and DeviceMesh([1, 0]) != ONE
    assert eval(repr(TWO), {"DeviceMesh": DeviceMesh}) == TWO
    x = torch.arange(10).view(5, 2)
    assert [ONE.shard_tensor(x, 0, r).shape[0] for r in (0, 1)] == [3, 2]
    assert DeviceMesh([0, 1, 2, 3]).shard_tensor(x[:1], 0, 2).shape == (0, 2)
    assert [TWO.shard_tensor(x, 1, r, Y).shape[1] for r in (2, 3)] == [1, 1]
    for rank, parallel in ((9, X), (0, Z), (0, ParallelType.block_x)):
        with pytest.raises(DefinitionError, match="mesh_"):
            TWO.shard_tensor(x, 0, rank, parallel)
    for wrong in ([], [0, 0], [[0, 1], [2]], "ab", [0.5]):
        with pytest.raises(DefinitionError, match="a mesh is a grid"):
            DeviceMesh(wrong)


def test_the_text_has_meshes_and_loops() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Float)
        y = fd.ops.exp(x)
        x.set_device_mesh(TWO)
        outer(x, 0, 2, Y)
        y.set_device_mesh(TWO)
        y.split(1, 3, inner_split=False)
        y.axis(1).parallelize(X)
        fd.add_output(y)
    y.set_allocation_domain(y.get_loop_domain()[::-1], [True, None, True])
    for domain in (y.get_loop_domain()[:2], x.get_loop_domain(), [0, 1, 2]):
        with pytest.raises(DefinitionError, match="each of the 3 loops of the tensor, once"):
            y.set_allocation_domain(domain, True)
    text = repr(fd)
    assert "tv1.set_allocation_domain([tv1.axis(2), tv1.axis(1), tv1.axis(0)]" in text
    assert "    tv0.set_device_mesh(DeviceMesh([[0, 1, 2], [3, 4, 5]]))\n" in text
    assert "    tv0.split(0, 2, False)\n" in text
    assert "    tv1.axis(1).parallelize(ParallelType.mesh_x)\n" in text
    assert repr(rebuilt(fd)) == text
    assert [a.extent() for a in y.get_loop_domain()] == [None, 3, None]
    with pytest.raises(DefinitionError, match="call it with execute_with_dtensors"):
        fd.execute([torch.randn(2, 3)])


def test_a_logical_domain_is_of_dims() -> None:
    """Dims have an extent for use in the fusion, and may be spread where they are not split."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Float)
        y = fd.ops.exp(x)
        rows, columns = y.get_logical_domain()
        fd.add_output(fd.ops.mul(y, rows.extent()))
        assert not rows.is_reduction() and not y.axis(0).is_reduction()
        assert "1: " in repr(columns)
        y.set_device_mesh(ONE)
        y.set_allocation_domain(y.get_logical_domain()[::-1], True)
        columns.parallelize(X)
        assert "tv1.axis(1).parallelize(ParallelType.mesh_x)" in repr(fd)
        assert "tv1.set_allocation_domain([tv1.axis(1), tv1.axis(0)], True)" in repr(fd)
        y.outer_split(0, 2)
        for call in (lambda: rows.parallelize(Y), lambda: y.set_allocation_domain([rows], True)):
            with pytest.raises(DefinitionError, match=r"dim 0 .* is split into axes \[0, 1\]"):
                call()
    with FusionDefinition() as fd:
        y = fd.ops.exp(fd.define_tensor([-1, -1]))
        fd.add_output(fd.ops.mul(y, y.get_logical_domain()[0].extent()))
    z = torch.randn(3, 2)
    torch.testing.assert_close(fd.execute([z])[0], z.exp() * 3)
