"""Programs and modules through thunder.jit, forward and backward, against eager torch."""

import shutil

import pytest
import thunder
import torch
from against_eager import check, regions
from programs import FORWARD, GRADIENTS, MODULES

from thunder_mdfuse import explain

# A fixed sample for the emulator, which compiles each kernel with g++ and runs it thread by thread.
EMULATED = ("scale and add", "variance", "softmax", "shapes", "bfloat16", "losses")


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_VERIFY", "1")


@pytest.mark.parametrize("name", GRADIENTS)
def test_function_forward_and_backward(name: str) -> None:
    function, make = GRADIENTS[name]
    jitted = check(function, make())
    assert regions(jitted), thunder.last_traces(jitted)[-1]
    assert not explain(jitted).unfused, explain(jitted)


@pytest.mark.parametrize("name", FORWARD)
def test_function_forward(name: str) -> None:
    function, make = FORWARD[name]
    jitted = check(function, [x.detach() for x in make()])
    assert regions(jitted), thunder.last_traces(jitted)[-1]
    assert not explain(jitted).unfused, explain(jitted)


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    make_module, make = MODULES[name]
    torch.manual_seed(0)
    jitted = check(make_module(), make())
    assert regions(jitted)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs a C++ compiler")
@pytest.mark.parametrize("name", EMULATED)
def test_function_in_the_emulator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "1")
    function, make = GRADIENTS[name]
    jitted = check(function, make())
    assert {r.backend for r in explain(jitted).regions} == {"emulate"}
    assert explain(jitted).kernels, explain(jitted)
