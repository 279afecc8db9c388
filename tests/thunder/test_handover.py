"""A backward pass lets go of what the forward pass saved as it runs, not at its end."""

from typing import Any

import pytest
import thunder
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from thunder_mdfuse import mdfuse_executor
from thunder_mdfuse.runtime.straight import compiled
from thunder_mdfuse.thunder.fusion_call import FusionCall


def _model(layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(layers)))


def _backward_region(jitted: Any) -> FusionCall:
    context = thunder.last_backward_traces(jitted)[-1].python_ctx()
    (found,) = (call for call in context.values() if isinstance(call, FusionCall))
    return found


@pytest.mark.parametrize("layers", [1, 4])
def test_what_was_saved_is_gone_when_the_region_ends(
    monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    model, x = _model(layers), torch.randn(8, 16)
    jitted = thunder.jit(model, executors=[mdfuse_executor])
    jitted(x).sum().backward()
    entry = _backward_region(jitted).last_used.last  # type: ignore[union-attr]
    assert entry is not None and entry.bound is not None
    alive: list[list[bool]] = []
    saved: list[StorageWeakRef] = []

    def count() -> None:
        alive.append([not s.expired() for s in saved])

    # The call's own text, with a count before each of its lines.
    code, lines = entry.bound.code, []
    for line in code.text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        counted = len(indent) == 8 and line.strip() not in ("note(e)", "raise")
        lines += [f"{indent}count()"] * counted + [line]
    counting = compiled("run", "\n".join(lines), {**code.names, "count": count})
    monkeypatch.setattr(entry.bound, "run", counting)
    result = jitted(x)
    kept = {p.untyped_storage().data_ptr() for p in (*model.parameters(), x)}
    storages = [t.untyped_storage() for t in result.grad_fn.saved_tensors]
    saved += [StorageWeakRef(s) for s in storages if s.data_ptr() not in kept]
    assert len(saved) == layers
    del storages
    loss = result.sum()
    del result
    model.zero_grad()
    loss.backward()
    left = [sum(found) for found in alive]
    assert left[0] == layers and left[-1] == 0, left
    assert left == sorted(left, reverse=True), left
    if layers > 1:  # one after another
        assert len(set(left)) == layers + 1, left


def test_gradients_twice_and_inputs_that_others_hold() -> None:
    model, x = _model(2), torch.randn(8, 16, requires_grad=True)
    jitted = thunder.jit(model, executors=[mdfuse_executor])
    for call in (jitted, model):
        result = call(x)
        for _ in range(2):  # what was saved is there for the second time as well
            result.sum().backward(retain_graph=True)
    sums = x.grad
    assert sums is not None
    x.grad = None
    model(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(sums, 4 * x.grad)


def test_kept_inputs_are_kept() -> None:
    model, x = _model(2), torch.randn(8, 16)
    jitted = thunder.jit(model, executors=[mdfuse_executor], mdfuse_keep_inputs=True)
    jitted(x).sum().backward()
    region = _backward_region(jitted)
    assert region.last_inputs is not None and len(region.last_inputs) == len(region.inputs)
    assert not region.lets_go and "import" in region.repro_script_for()
