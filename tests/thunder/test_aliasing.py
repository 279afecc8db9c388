"""Views, writes and what shares storage with what, as in eager torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_eager import jit, regions

from thunder_mdfuse import explain

View = Callable[[torch.Tensor], torch.Tensor]

VIEWS: dict[str, View] = {
    "transpose": lambda x: x.t(),
    "reshape": lambda x: x.reshape(2, 12),
    "reshape that copies": lambda x: x.t().reshape(24),
    "slice": lambda x: x[1:3, ::2],
    "select": lambda x: x[1],
    "expand": lambda x: x.unsqueeze(0).expand(3, 4, 6),
    "view": lambda x: x.view(-1),
    "itself": lambda x: x,
    "contiguous": lambda x: x.contiguous(),
    "contiguous that copies": lambda x: x.t().contiguous(),
}


def shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_beside_a_computed_output(name: str) -> None:
    view = VIEWS[name]
    function = lambda x: (view(x), x * 2)
    x = torch.randn(4, 6)
    jitted = jit(function)
    found, wanted = jitted(x), function(x)
    assert regions(jitted)
    assert shares(found[0], x) == shares(wanted[0], x)
    assert found[0].storage_offset() == wanted[0].storage_offset()
    assert found[0].stride() == wanted[0].stride()
    assert not shares(found[1], x)
    torch.testing.assert_close(found[0], wanted[0])


def add_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1).mul_(2)


def write_and_read(x: torch.Tensor) -> Any:
    before = x * 3
    x.add_(1)
    return before, x * 3


def through_a_view(x: torch.Tensor) -> Any:
    view = x.view(-1)
    x.mul_(2)
    return view + 1, x[0]


def set_a_row(x: torch.Tensor) -> torch.Tensor:
    x[0].mul_(3)
    return x + 1


def copy_over(x: torch.Tensor, y: torch.Tensor) -> Any:
    transposed = x.t()
    x.copy_(y * 2)
    return transposed, y + 1


def swap(x: torch.Tensor, y: torch.Tensor) -> None:
    kept = x * 1
    x.copy_(y)
    y.copy_(kept)


def nothing_returned(x: torch.Tensor) -> None:
    x.exp_()


@pytest.mark.parametrize(
    "function",
    [
        add_in_place,
        write_and_read,
        through_a_view,
        set_a_row,
        copy_over,
        swap,
        nothing_returned,
    ],
)
def test_writes_in_place(function: Callable[..., Any]) -> None:
    count = function.__code__.co_argcount
    mine = [torch.randn(4, 6) for _ in range(count)]
    theirs = [x.clone() for x in mine]
    jitted = jit(function)
    for _ in range(2):
        found, wanted = jitted(*mine), function(*theirs)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(mine, theirs)
    assert regions(jitted)


def test_a_written_input_is_returned_itself() -> None:
    x = torch.randn(4, 6)
    jitted = jit(add_in_place)
    assert shares(jitted(x), x)


def test_strides_of_a_written_input_stay() -> None:
    x = torch.randn(6, 4).t()
    wanted = add_in_place(x.clone())
    jit(add_in_place)(x)
    assert x.stride() == (1, 4)
    torch.testing.assert_close(x, wanted)


def test_a_leaf_that_needs_a_gradient_is_not_written() -> None:
    jitted = jit(lambda x: x.mul_(2))
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        jitted(torch.ones(3, requires_grad=True))


def test_running_statistics_are_written_in_training() -> None:
    net = torch.nn.BatchNorm1d(5)
    mine = torch.nn.BatchNorm1d(5)
    jitted = jit(mine)
    x = torch.randn(7, 5)
    for _ in range(2):
        torch.testing.assert_close(jitted(x), net(x))
    torch.testing.assert_close(mine.running_mean, net.running_mean)
    torch.testing.assert_close(mine.running_var, net.running_var)


def test_a_write_to_what_the_symbol_itself_makes() -> None:
    # instance_norm writes its statistics, repeated for the batch, to a tensor of its own.
    function = torch.nn.functional.instance_norm
    call = lambda x, m, v: function(x * 2, m, v, use_input_stats=True, momentum=0.2) + 1
    mine = [torch.randn(3, 4, 5), torch.zeros(4), torch.ones(4)]
    theirs = [x.clone() for x in mine]
    jitted = jit(call)
    torch.testing.assert_close(jitted(*mine), call(*theirs))
    assert regions(jitted)
    assert "writes in place to a tensor that it makes" in str(explain(jitted))
