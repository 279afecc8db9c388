"""Straight-line functions: what they say, what their errors say, and the launches in them."""

import traceback
from types import SimpleNamespace

import pytest
import thunder
import torch
from recorded_gpu import bound_there, recorded_gpu

from thunder_mdfuse import mdfuse_executor
from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.compile import module
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.runtime.program import BoundProgram
from thunder_mdfuse.runtime.straight import Straight
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import H200


def test_an_error_shows_its_line_and_says_its_note() -> None:
    code = Straight("half", "x")
    code.add("y = x + 1")
    code.add("return y / zero", "while halving")
    code.known("zero", 0)
    half = code.function()
    with pytest.raises(ZeroDivisionError) as caught:
        half(1)
    assert caught.value.__notes__ == ["while halving"]
    assert "return y / zero" in "".join(traceback.format_tb(caught.value.__traceback__))
    with pytest.raises(TypeError) as other:
        half(None)
    assert not hasattr(other.value, "__notes__")


def test_a_name_stands_for_one_thing() -> None:
    code = Straight("f", "")
    assert code.known("a", 1) == code.known("a", 1) == "a"
    with pytest.raises(ValueError, match="a stands for 1 already"):
        code.known("a", 2)
    assert [code.new("b", 1), code.new("b", 1)] == ["b0", "b1"]


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_torch_compile_looks_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    jitted = thunder.jit(lambda x: x * 2 + 1, executors=[mdfuse_executor])
    x = torch.randn(3)
    jitted(x)
    compiled = torch.compile(lambda x: jitted(x) + 1, backend="eager")
    torch.testing.assert_close(compiled(x), x * 2 + 2)


# --- A call on a GPU, with cuda.core replaced by recorders ---------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return recorded_gpu(monkeypatch)


SCALED = """
local
%0 = input(position=0) : f32[{n}, 16]
%1 = input(position=1) : f64
%2 = mul(%0, %1) : f32[{n}, 16]
%3 = sum(%2; dims=[1]) : f32[{n}]
return %2, %3
"""


def test_a_launch_gets_addresses_sizes_and_numbers(gpu: SimpleNamespace) -> None:
    x = torch.randn(8, 16)
    found = bound_there(SCALED.format(n=8)).run([x, 1.5], None)
    ((device, stream, config, kernel, args),) = gpu.launches
    assert (device, stream, config, kernel) == (1, "stream of 1", config, "kernel")
    addresses = [t.data_ptr() for t in (x, *found)]  # type: ignore[union-attr]
    assert list(args[:3]) == addresses
    assert args[-1] == module.ENCODE["f32"][1](1.5)
    assert [tuple(t.shape) for t in found] == [(8, 16), (8,)]  # type: ignore[union-attr]


def test_the_device_of_a_program_is_current_while_it_runs(gpu: SimpleNamespace) -> None:
    """On stream 0, which all devices have, a kernel would run on the current one."""
    gpu.current = 0
    bound_there(SCALED.format(n=8)).run([torch.randn(8, 16), 1.5], None)
    assert gpu.entered == [1] and gpu.current == 0
    assert [found[0] for found in gpu.launches] == [1]


def test_nothing_is_launched_for_empty_tensors(gpu: SimpleNamespace) -> None:
    wide, sums = bound_there(SCALED.format(n=0)).run([torch.randn(0, 16), 1.5], None)
    assert gpu.launches == []
    assert wide.shape == (0, 16) and sums.shape == (0,)  # type: ignore[union-attr]


def test_a_failed_launch_names_its_kernel(gpu: SimpleNamespace) -> None:
    gpu.error = RuntimeError("no")
    with pytest.raises(RuntimeError, match="no") as caught:
        bound_there(SCALED.format(n=8)).run([torch.randn(8, 16), 1.5], None)
    assert caught.value.__notes__ == ["while launching grid (1, 1, 1)"]


def test_only_numbers_that_are_read_are_computed() -> None:
    text = """
    local
    %0 = input(position=0) : f32[4, 16]
    %1 = input(position=1) : f64
    %2 = const(value='2.0', dtype=f64) : f64
    %3 = mul(%2, %2) : f64
    %4 = mul(%1, %3) : f64
    %5 = mul(%0, %4) : f32[4, 16]
    return %5
    """
    fusion = parse(text)
    plan = plan_program(fusion, [InputClass(None), InputClass(None)], H200, {}, "cpu")
    texts = [write_kernel(k) for k in plan.kernels]
    made = BoundProgram(plan, texts, {}, "emulate", torch.device("cpu"), "")
    x = torch.randn(4, 16)
    (found,) = made.run([x, 0.5], None)
    torch.testing.assert_close(found, x * 2)
    assert made.code.names["n3"] == 4.0
    assert sum("# mul" in line for line in made.code.text.splitlines()) == 1
