"""Compile options: what they do, how Thunder shows them, and errors that say what there is."""

import pytest
import thunder
import torch
from against_eager import jit, regions
from thunder.examine import examine, get_fusion_symbols, get_fusions

from thunder_mdfuse import mdfuse_executor
from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.thunder.options import OPTIONS


def gelu_of_a_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x + y)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(8, 9, requires_grad=True) for _ in range(2))


def test_what_is_computed_again_is_a_choice() -> None:
    saved = []
    for recompute in (True, False):
        jitted, (x, y) = jit(gelu_of_a_sum, mdfuse_recompute=recompute), inputs()
        out = jitted(x, y)
        out.sum().backward()
        wanted = torch.autograd.grad(gelu_of_a_sum(x, y).sum(), x)[0]
        torch.testing.assert_close(x.grad, wanted)
        forward = regions(jitted)[0]
        saved.append(len(forward.outputs))
    assert saved[0] < saved[1]


@pytest.mark.parametrize("name", OPTIONS)
def test_thunder_shows_options_with_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    jitted = jit(gelu_of_a_sum, **{name: not OPTIONS[name].default})
    jitted(*inputs())
    thunder.last_compile_options(jitted)
    used, _, unused = capsys.readouterr().out.partition("Unused compile options:")
    assert f"{name}. {OPTIONS[name].help}" in used and name not in unused


def test_a_value_that_an_option_does_not_take() -> None:
    with pytest.raises(ExecutorError, match="mdfuse_recompute='yes': it takes True or False"):
        jit(gelu_of_a_sum, mdfuse_recompute="yes")(*inputs())


def test_an_option_that_there_is_not() -> None:
    told = "unknown compile option mdfuse_keep_input: did you mean mdfuse_keep_inputs?.*recompute"
    with pytest.raises(ExecutorError, match=told):
        jit(gelu_of_a_sum, mdfuse_keep_input=True)(*inputs())


def test_thunder_s_examine(capsys: pytest.CaptureFixture[str]) -> None:
    examine(gelu_of_a_sum, *inputs())
    assert "supported" in capsys.readouterr().out.lower()
    jitted = jit(gelu_of_a_sum)
    jitted(*inputs()).sum().backward()
    for trace in (thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]):
        (found,) = get_fusions(trace, warn_if_fusions_unavailable=False)
        (symbol,) = get_fusion_symbols(trace, warn_if_fusions_unavailable=False)
        name, call = found
        assert name == symbol.sym.name == call.name and symbol.sym.executor is mdfuse_executor
        assert call.last_used is not None and "__global__" in call.last_cuda_code()
