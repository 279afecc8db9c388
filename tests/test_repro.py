"""``repro_script_for``: a script that runs as it is and has inputs like those it was made for."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from thunder.examine import get_fusions

from thunder_mdfuse import DataType, FusionDefinition, knobs, mdfuse_executor
from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.repro import repro_script


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "reference")


def run(script: str, folder: Path) -> str:
    """What the script prints, under a fresh interpreter."""
    path = folder / "repro.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, str(path)],
        env=knobs.child_environment(PYTHONPATH=":".join(filter(None, sys.path))),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(outputs: list[Any]) -> str:
    lines = [
        f"{x.dtype} {tuple(x.shape)} {x.stride()} {x.device}"
        if isinstance(x, torch.Tensor)
        else str(x)
        for x in outputs
    ]
    return "".join(f"{line}\n" for line in lines)


def test_a_script_runs_as_it_is(tmp_path: Path) -> None:
    inputs: list[Any] = [
        torch.randn(8, 6).t(),
        torch.randn(6, 1).bfloat16().expand(6, 8),
        torch.tensor([5, 0, 3, 3]),
        torch.tensor(2.5),
        3.5,
        [4, 12],
        True,
    ]
    with FusionDefinition() as fd:
        x, y, i = (fd.from_pytorch(t) for t in inputs[:3])
        n = fd.from_pytorch(inputs[3])
        a = fd.define_scalar(DataType.Double)
        shape = fd.define_vector(2)
        flag = fd.define_scalar(DataType.Bool)
        total = fd.ops.add(fd.ops.mul(x, y), fd.ops.mul(n, a))
        fd.add_output(total)
        fd.add_output(fd.ops.index_select(total, i, 0))
        fd.add_output(fd.ops.reshape(total, shape))
        fd.add_output(fd.ops.where(flag, x, float("-inf")))
        fd.add_output(fd.ops.add(a, 1))
        fd.add_output(fd.ops.add(x, 1.0), x)
    script = fd.repro_script_for(inputs)
    assert "torch.manual_seed(0)" in script
    assert run(script, tmp_path) == shown(fd.execute(inputs))


def test_a_script_without_a_call(tmp_path: Path) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([-1])))
    assert run(fd.repro_script_for(), tmp_path) == ""


def test_a_script_for_a_region_of_thunders(tmp_path: Path) -> None:
    def f(x: Any, y: Any, n: int) -> Any:
        z = torch.softmax(x * y, -1) * n
        return z, z.sum(0).to(torch.bfloat16)

    jitted = thunder.jit(f, executors=[mdfuse_executor], mdfuse_keep_inputs=True)
    inputs = torch.randn(8, 6).t(), torch.randn(1, 8).expand(6, 8), 3
    jitted(*inputs)
    ((_, region),) = get_fusions(thunder.last_traces(jitted)[-1], warn_if_fusions_unavailable=False)
    wanted = shown(region(*region.last_inputs))
    for script in (region.repro_script_for(), region.repro_script_for(region.last_inputs)):
        assert "thunder.jit" not in script and "torch.manual_seed(0)" in script
        assert "laid_out(" in script
    assert run(script, tmp_path) == wanted
    with pytest.raises(ExecutorError, match=r"takes the inputs .*, found 1 values"):
        region.repro_script_for(inputs[:1])
    x, y = region.last_inputs
    for wrong, found in (
        ((x.double(), y), r"x was cpu f32\[6, 8\] when it was traced, found f64\[6, 8\]; give"),
        ((x, y[:5]), r"y was cpu f32\[6, 8\] when it was traced, found f32\[5, 8\]"),
        ((x[0], y), r"found f32\[8\]"),
        ((x, 2), "found 2 of type int"),
    ):
        with pytest.raises(ExecutorError, match=found):
            region.repro_script_for(wrong)
    region.last_inputs = None
    with pytest.raises(ExecutorError, match="mdfuse_keep_inputs=True"):
        region.repro_script_for()


@pytest.mark.filterwarnings("ignore:The 'symbolic values' cache option:UserWarning")
def test_a_script_for_a_region_of_any_sizes() -> None:
    jitted = thunder.jit(lambda x, n: x * n, executors=[mdfuse_executor], cache="symbolic values")
    jitted(torch.randn(4, 8), 3)
    ((_, region),) = get_fusions(thunder.last_traces(jitted)[-1], warn_if_fusions_unavailable=False)
    given = {"x": torch.randn(5, 2), "i2": 3}
    values = [given.get(p.name, given["x"]) for p in region.inputs]
    assert "torch.randn((5, 2)" in region.repro_script_for(values)
    values[[p.name for p in region.inputs].index("i2")] = 2.5
    with pytest.raises(ExecutorError, match=r"i2 was int i2 when it was traced, found 2\.5 of"):
        region.repro_script_for(values)


def made(value: Any) -> Any:
    """The input of a script for ``value``."""
    scope: dict[str, Any] = {}
    body = repro_script("def mdfuse_fusion(fd): pass", [value])
    text = body[body.index("inputs = [") : body.index("show(")]
    exec("import torch\nfrom thunder_mdfuse.direct.remake import laid_out\n" + text, scope)
    (found,) = scope["inputs"]
    return found


BASE = torch.randn(6, 8)


@pytest.mark.parametrize(
    "value",
    [
        BASE,
        BASE.t(),
        BASE[:, ::2],
        BASE[1:, 3:],
        BASE[:1].expand(5, 8),
        BASE[:, :1].expand(6, 3),
        BASE[:0],
        BASE.t()[:, :0],
        BASE[0, 0],
        BASE.bfloat16(),
        BASE.to(torch.float8_e4m3fn),
        BASE.to(torch.complex64),
        torch.tensor(float("nan")),
        torch.tensor(float("-inf")).half(),
        torch.tensor(complex(0, float("inf"))),
        torch.arange(6),
        torch.arange(12).view(3, 4).t(),
        torch.arange(100).int(),
        torch.arange(200).view(10, 20)[:, ::2],
        torch.arange(100).view(10, 10) > 50,
        torch.ones(3, dtype=torch.bool),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    ],
)
def test_inputs_keep_shape_strides_and_dtype(value: torch.Tensor) -> None:
    found = made(value)
    assert (found.dtype, found.shape, found.device) == (value.dtype, value.shape, value.device)
    assert found.stride() == value.stride() or not value.numel()
    if not value.is_floating_point() and not value.is_complex() and value.numel():
        assert value.min() <= found.min() <= found.max() <= value.max()
        if value.numel() <= 64:
            assert torch.equal(found, value)


@pytest.mark.parametrize("value", [3, True, 2.5, float("inf"), 1 + 2j])
def test_numbers_are_written_down(value: Any) -> None:
    assert made(value) == value
    assert type(made(value)) is type(value)
