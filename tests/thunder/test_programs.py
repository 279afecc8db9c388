"""Programs and modules through thunder.jit, forward and backward, against eager torch."""

import shutil
from typing import Any

import pytest
import thunder
import torch
from against_eager import check, regions
from programs import FORWARD, GRADIENTS, MODULES
from thunder.core.proxies import TensorProxy

from thunder_mdfuse import explain
from thunder_mdfuse.ir.graph import Builder
from thunder_mdfuse.thunder import translate
from thunder_mdfuse.thunder.claims import ops_of

# A fixed sample for the emulator, which compiles each kernel with g++ and runs it thread by thread.
EMULATED = ("scale and add", "variance", "softmax", "shapes", "bfloat16", "losses")


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are checked between all stages, and claims do with what they say that they do."""
    monkeypatch.setenv("MDFUSE_VERIFY", "1")
    build, op = translate._translate_symbol, Builder.op
    made: set[str] = set()

    def noted(self: Builder, name: str, *args: Any, **kwargs: Any) -> Any:
        made.add(name)
        return op(self, name, *args, **kwargs)

    def checked(v: Any, bsym: Any, pins: Any) -> None:
        made.clear()
        build(v, bsym, pins)
        said = set(ops_of(bsym.sym.id))
        numbers = not any(isinstance(p, TensorProxy) for p in bsym.flat_proxy_outs)
        assert numbers or (said & made if said else not made), f"{bsym.sym.name}: {said}, {made}"

    monkeypatch.setattr(Builder, "op", noted)
    monkeypatch.setattr(translate, "_translate_symbol", checked)


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
