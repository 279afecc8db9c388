"""``fd.ops``: sizes, views, pad and cat, against eager torch."""

from typing import Any

import pytest
import torch
from direct.checks import check, compare, defined
from torch.nn import functional

from thunder_mdfuse import DataType, FusionDefinition
from thunder_mdfuse.errors import DefinitionError, ProgramError


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "reference")
    monkeypatch.setenv("MDFUSE_VERIFY", "1")
    torch.manual_seed(3)


X = torch.randn(3, 4, 5)


def test_size_and_shape() -> None:
    fd = check(
        lambda fd, x: (
            *fd.ops.shape(x),
            fd.ops.size(x, -1),
            x.size(0),
            x.shape()[1],
            x.size(0) * 2,
        ),
        lambda x: (*x.shape, x.shape[-1], x.shape[0], x.shape[1], x.shape[0] * 2),
        [X],
    )
    assert fd.fusion.inputs()[0].ndim == 3
    assert fd.fusion.inputs()[0].dtype() is DataType.Float


def test_sizes_follow_the_input() -> None:
    fd = defined(lambda fd, x: fd.ops.mul(x, x.size(1)), [X])
    for shape in ((3, 4, 5), (2, 7, 5), (3, 1, 2)):
        x = torch.randn(shape)
        compare(fd.execute([x]), [x * shape[1]])


def test_broadcasts() -> None:
    check(
        lambda fd, x: (
            fd.ops.broadcast(x, [True, False, False, True, False]),
            fd.ops.broadcast_in_dim(x, [2, 3, 4, 5, 6], [1, 2, 3]),
            fd.ops.broadcast_in_dim(x, (3, 4, 7, -1), (0, 1, 3)),
            fd.ops.broadcast_in_dim(x, [x.size(0), 2, x.size(1), x.size(2)], [0, 2, 3]),
            fd.ops.broadcast_in_dim(fd.ops.sum(x), [2, 3], []),
        ),
        lambda x: (
            x[None, :, :, None],
            x[None, :, :, :, None].expand(2, 3, 4, 5, 6),
            x[:, :, None].expand(3, 4, 7, 5),
            x[:, None].expand(3, 2, 4, 5),
            x.sum().expand(2, 3),
        ),
        [X],
    )
    check(lambda fd: fd.ops.broadcast_in_dim(2.5, [2, 3], []), lambda: torch.full(
        (2, 3), 2.5, dtype=torch.float64
    ), [], strides=False)  # fmt: skip


def test_expand() -> None:
    check(
        lambda fd, x: (fd.ops.expand(x, [2, 3, 4, 5]), fd.ops.expand(x, (-1, 4, -1))),
        lambda x: (x.expand(2, 3, 4, 5), x.expand(-1, 4, -1)),
        [torch.randn(3, 1, 5)],
    )
    check(
        lambda fd, x, y: fd.ops.expand(x, [y.size(0), 3, y.size(1), 5]),
        lambda x, y: x.expand(2, 3, 4, 5),
        [torch.randn(3, 1, 5), torch.randn(2, 4)],
    )


def test_reshape() -> None:
    for x in (X, X.permute(2, 0, 1), X[:, ::2]):
        n = x.numel()
        check(
            lambda fd, x, n=n: (
                fd.ops.reshape(x, [-1]),
                fd.ops.reshape(x, [n]),
                fd.ops.reshape(x, (x.size(0), -1)),
                fd.ops.reshape(x, [x.size(0), x.size(1) * x.size(2)]),
                fd.ops.reshape(x, [1, -1, 1]),
                fd.ops.reshape(fd.ops.exp(x), [-1, x.size(2)]),
            ),
            lambda x, n=n: (
                x.reshape(-1),
                x.reshape(n),
                x.reshape(x.size(0), -1),
                x.reshape(x.size(0), -1),
                x.reshape(1, -1, 1),
                x.exp().reshape(-1, x.size(2)),
            ),
            [x],
        )


def test_reshape_that_only_a_call_can_check() -> None:
    fd = defined(lambda fd, x: fd.ops.exp(fd.ops.reshape(x, [-1, 4])), [torch.randn(6, 10)])
    for shape in ((6, 10), (2, 2), (8, 3)):
        x = torch.randn(shape)
        compare(fd.execute([x]), [x.reshape(-1, 4).exp()])
    with pytest.raises(ProgramError, match=r"is for sizes with 4 divides s0\*s1"):
        fd.execute([torch.randn(3, 3)])


def test_sizes_that_are_given_as_numbers() -> None:
    def define(fd: FusionDefinition, x: Any, a: Any, b: Any) -> Any:
        whole = fd.ops.full([b], a, DataType.Int)
        return fd.ops.exp(fd.ops.reshape(x, [a, b])), fd.ops.mul(x, a), whole

    fd = defined(define, [torch.randn(6, 10), 1, 1])
    for a, b in ((12, 5), (60, 1), (4, 15)):
        x = torch.randn(6, 10)
        compare(fd.execute([x, a, b]), [x.reshape(a, b).exp(), x * a, torch.full((b,), a)])
    with pytest.raises(ProgramError, match=r"is for sizes with .* found"):
        fd.execute([torch.randn(6, 10), 7, 7])
    with pytest.raises(ProgramError, match="a size is a non-negative int"):
        fd.execute([torch.randn(6, 10), -6, -10])


def test_define_vector() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        shape = fd.define_vector(3)
        fixed = fd.define_vector([2, 3])
        fd.add_output(fd.ops.reshape(x, shape))
        fd.add_output(fd.ops.full(fixed, 1.0, DataType.Float))
    x = torch.randn(6, 10)
    compare(fd.execute([x, [3, 4, 5]]), [x.reshape(3, 4, 5), torch.ones(2, 3)])
    compare(fd.execute([[x], 2, (3, 10)]), [x.reshape(2, 3, 10), torch.ones(2, 3)])


def test_permute_and_squeeze() -> None:
    check(
        lambda fd, x: (fd.ops.permute(x, [2, 0, 1]), fd.ops.permute(x, (-1, -2, 0))),
        lambda x: (x.permute(2, 0, 1), x.permute(-1, -2, 0)),
        [X],
    )
    check(
        lambda fd, x: (fd.ops.squeeze(x, [1, -1]), fd.ops.squeeze(x, 1)),
        lambda x: (x.squeeze((1, -1)), x.squeeze(1)),
        [torch.randn(3, 1, 4, 1)],
    )
    check(
        lambda fd, x: fd.ops.squeeze(
            fd.ops.expand(fd.ops.broadcast(x, [True, False]), [7, -1]), [0], squeeze_expanded=True
        ),
        lambda x: x,
        [torch.randn(4)],
    )


def test_slices() -> None:
    check(
        lambda fd, x: (
            fd.ops.slice(x, [0, 1, 2], [3, 3, 4]),
            fd.ops.slice(x, [0, 1, 0], [9, 9, 9], [1, 2, 3]),
            fd.ops.slice(x, [-2, 0, -9], [3, -1, 5]),
            fd.ops.slice(x, [1, 1, 1], [2, 2, 2], manual_normalization=True),
            fd.ops.slice(x, [2, 0, 0], [1, 4, 5]),
            fd.ops.exp(fd.ops.slice(x, [0, 0, 1], [x.size(0), x.size(1), x.size(2)])),
        ),
        lambda x: (
            x[0:3, 1:3, 2:4],
            x[0:9, 1:9:2, 0:9:3],
            x[-2:3, 0:-1, -9:5],
            x[1:2, 1:2, 1:2],
            x[2:1],
            x[..., 1:].exp(),
        ),
        [X],
    )


def test_neighbours_along_a_dim() -> None:
    """Slices of a symbolic size that meet again."""
    check(
        lambda fd, x: fd.ops.sub(
            fd.ops.slice(x, [1], [x.size(0)]), fd.ops.slice(x, [0], [x.size(0) - 1])
        ),
        torch.diff,
        [torch.randn(9)],
    )


def test_stride_order() -> None:
    x = torch.randn(2, 3, 4, 5)
    check(
        lambda fd, x: (
            fd.ops.stride_order(x, [3, 0, 2, 1]),
            fd.ops.stride_order(fd.ops.exp(x), [3, 2, 1, 0]),
        ),
        lambda x: (x.clone(memory_format=torch.channels_last), x.exp().contiguous()),
        [x],
    )
    (found,) = defined(lambda fd, x: fd.ops.stride_order(x, [0, 1, 2, 3]), [x]).execute([x])
    assert found.stride() == (1, 2, 6, 24)


def test_pad() -> None:
    for widths in ([1, 2], [0, 0, 3, 1], [-1, 2, 0, -1, 1, 1]):
        for value in (None, 2.5, -1):
            check(
                lambda fd, x, w=widths, v=value: fd.ops.pad(x, w, v),
                lambda x, w=widths, v=value: functional.pad(x, w, value=v),
                [X],
            )
    check(
        lambda fd, x, n, v: fd.ops.pad(x, [n, 1], v),
        lambda x, n, v: functional.pad(x, [n, 1], value=v),
        [X, 2, 0.5],
    )


def test_cat() -> None:
    for dim in (0, 1, -1):
        y = torch.randn(3, 4, 5)
        check(
            lambda fd, x, y, d=dim: fd.ops.cat([x, y, x], d),
            lambda x, y, d=dim: torch.cat([x, y, x], d),
            [X, y],
        )
    check(
        lambda fd, x, y: fd.ops.cat([x, y]),
        lambda x, y: torch.cat([x, y]),
        [torch.randn(2, 3).bfloat16(), torch.randn(5, 3)],
    )
    check(lambda fd, x: fd.ops.cat((x,)), lambda x: torch.cat([x]), [X])


def test_sizes_become_one_where_an_op_needs_it() -> None:
    fd = defined(lambda fd, x, y: fd.ops.add(x, y), [X, X])
    assert str(fd.fusion).count("f32[s0, s1, s2]") == 3
    with pytest.raises(ProgramError, match=r"must have shape \[3, 4, 5\]"):
        fd.execute([X, torch.randn(3, 4, 1)])


def test_a_reshape_meets_a_tensor() -> None:
    """Sizes that are equal by a guard alone."""
    fd = defined(
        lambda fd, x, y: fd.ops.add(fd.ops.reshape(x, [-1]), fd.ops.reshape(y, [-1])),
        [torch.randn(4, 6), torch.randn(3, 8)],
    )
    x, y = torch.randn(2, 8), torch.randn(4, 4)
    compare(fd.execute([x, y]), [x.reshape(-1) + y.reshape(-1)])
    with pytest.raises(ProgramError, match="is for sizes with"):
        fd.execute([x, torch.randn(4, 5)])


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda fd, x: fd.ops.reshape(x, [-1, -1]), "more than one -1"),
        (lambda fd, x: fd.ops.reshape(x, [7]), "sizes 60 and 7 differ"),
        (lambda fd, x: fd.ops.reshape(x, [7, -1]), "60 elements do not fill"),
        (lambda fd, x: fd.ops.reshape(x, 60), "a list of sizes is needed"),
        (lambda fd, x: fd.ops.reshape(x, [2.5]), "cannot be a size"),
        (lambda fd, x: fd.ops.permute(x, [0, 1]), "no permutation"),
        (lambda fd, x: fd.ops.squeeze(x, 0), "sizes 3 and 1 differ"),
        (lambda fd, x: fd.ops.broadcast(x, [True, False]), "keeps 1 dims"),
        (lambda fd, x: fd.ops.broadcast_in_dim(x, [3, 4, 5], [0, 2, 1]), "must ascend"),
        (lambda fd, x: fd.ops.expand(x, [3, 4, 6]), "sizes 5 and 6 differ"),
        (lambda fd, x: fd.ops.expand(x, [-1, 3, 4, 5]), "-1 keeps"),
        (lambda fd, x: fd.ops.slice(x, [0], [1]), "for each of 3 dims"),
        (lambda fd, x: fd.ops.slice(x, [0] * 3, [1] * 3, [0] * 3), "at least 1"),
        (lambda fd, x: fd.ops.stride_order(x, [0, 0, 1]), "no permutation"),
        (lambda fd, x: fd.ops.pad(x, [1]), "pairs of widths"),
        (lambda fd, x: fd.ops.cat([]), "at least one tensor"),
        (lambda fd, x: fd.ops.cat([x, fd.ops.sum(x, 0)]), "one rank"),
        (lambda fd, x: fd.ops.cat([x], manual_padding=True), "manual_padding"),
        (lambda fd, x: fd.ops.add(x, fd.ops.permute(x, [2, 1, 0])), "sizes 5 and 3 differ"),
        (lambda fd, x: fd.ops.size(x, 3), "no such dim"),
    ],
)
def test_what_is_refused(define: Any, message: str) -> None:
    with pytest.raises(DefinitionError) as e:
        defined(define, [X], static_sizes=True)
    assert message in str(e.value)
