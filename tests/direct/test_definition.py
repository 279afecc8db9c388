"""``FusionDefinition``: inputs, outputs, what is compiled when, text, errors."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from direct.checks import compare, defined, rebuilt

from thunder_mdfuse import DataType, FusionDefinition, ParallelType, knobs, pipeline
from thunder_mdfuse.compile import emulate_build
from thunder_mdfuse.direct.ops import REFUSED
from thunder_mdfuse.direct.table import OPS
from thunder_mdfuse.errors import DefinitionError, ProgramError


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "reference")
    monkeypatch.setenv("MDFUSE_VERIFY", "1")
    torch.manual_seed(3)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often programs were lowered, planned and compiled since the test began."""
    found: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        original = getattr(module, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, counting)

    count(pipeline, "lower")
    count(pipeline, "plan")
    count(emulate_build, "_run")  # the compiler's
    yield found


def rms_norm(fd: FusionDefinition, x: Any, w: Any) -> Any:
    wide = fd.ops.cast(x, DataType.Float)
    mean = fd.ops.div(fd.ops.sum(fd.ops.mul(wide, wide), -1, keepdim=True), x.size(-1))
    scaled = fd.ops.mul(wide, fd.ops.rsqrt(fd.ops.add(mean, 1e-6)))
    return fd.ops.cast(fd.ops.mul(scaled, w), DataType.BFloat16)


def eager_rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6) * w).bfloat16()


@pytest.mark.parametrize("name", ["reference", "emulate"])
def test_a_new_shape_compiles_nothing(
    name: str, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", name)
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")
    fd = defined(rms_norm, [torch.randn(4, 64).bfloat16(), torch.randn(64)])
    texts: dict[str, str] = {}
    before: Counter[str] | None = None
    for shape in ((4, 64), (7, 64), (100, 48), (4, 64), (2, 56)):
        x, w = torch.randn(shape).bfloat16(), torch.randn(shape[1])
        compare(fd.execute([x, w]), [eager_rms_norm(x, w)])
        texts = texts or fd.executable.kernel_sources()
        assert fd.executable.kernel_sources() == texts, shape
        before = before or counted.copy()
        assert counted == before, shape
    assert len(texts) == counted["plan"] == 1
    assert bool(counted["_run"]) == (name == "emulate")


def test_numbers_compile_nothing(counted: Counter[str]) -> None:
    fd = defined(
        lambda fd, x, a, n: (fd.ops.mul(x, a), fd.ops.reshape(x, [n, -1])),
        [torch.randn(4, 6), 1.5, 2],
    )
    for a, n in ((1.5, 2), (-3.0, 8), (0.0, 3)):
        x = torch.randn(4, 6)
        compare(fd.execute([x, a, n]), [x * a, x.reshape(n, -1)])
    assert counted["lower"] == 1
    assert counted["plan"] <= 2  # the reshape of a contiguous tensor is a view for either


def test_equal_definitions_share_what_is_compiled(counted: Counter[str]) -> None:
    x = torch.randn(5, 9)
    for _ in range(2):
        fd = defined(lambda fd, x: fd.ops.add(fd.ops.cosh(x), 4.25), [x])
        compare(fd.execute([x]), [x.cosh() + 4.25])
    assert counted["lower"] == counted["plan"] == 1


def test_both_forms_of_define_tensor() -> None:
    with FusionDefinition() as fd:
        tensors = [
            fd.define_tensor([-1, 1, 3], [True, None, True], DataType.Half),
            fd.define_tensor(shape=[-1, 1, 3], contiguity=False, dtype=torch.float16),
            fd.define_tensor([4, 1, 3], [3, 3, 1], DataType.Half),
            fd.define_tensor(sizes=[4, 1, 3], strides=[1, 9, 4], dtype=DataType.Half),
            fd.define_tensor([4, 1, 3], [3, 3, 1], DataType.Half, static_sizes=True),
            fd.define_tensor([4, 3], stride_order=[0, 1], dtype=DataType.Half),
            fd.define_tensor([0, -1]),
            fd.define_tensor([], dtype=DataType.Double, is_cpu=True),
        ]
    shown = [repr(t) for t in tensors]
    assert shown[0] == "TensorView(f16[s0, 1, 3])"
    assert shown[2] == "TensorView(f16[s2, 1, s3])"
    assert shown[4] == "TensorView(f16[4, 1, 3])"
    assert shown[6:] == ["TensorView(f32[0, s6])", "TensorView(f64[])"]
    text = repr(fd)
    assert "contiguity=[True, None, True]" in text
    assert "stride_order=[0, 2, 1]" in text  # of strides [1, 9, 4]
    assert tensors[0].dtype() is DataType.Half
    assert tensors[0].ndim == 3


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda fd: fd.define_tensor([-2]), r"a size is -1 \(any\), 1"),
        (lambda fd: fd.define_tensor([-1], [True, True]), "for each of 1 dims"),
        (lambda fd: fd.define_tensor([-1, -1], stride_order=[0, 0]), "no permutation"),
        (lambda fd: fd.define_tensor([-1], is_cpu=True), "is_cpu is for 0-dim tensors"),
        (lambda fd: fd.define_tensor([-1], dtype=DataType.Float4_e2m1fn), "cast to one of these"),
        (lambda fd: fd.define_tensor([-1], dtype="float16"), "DataType.Half or torch.float16"),
        (lambda fd: fd.define_tensor([-1], dtype="f16"), "'f16'; .* DataType.Float or torch.float"),
        (lambda fd: fd.define_tensor([-1], dtype=int), "found <class 'int'>; give one of these"),
        (lambda fd: fd.define_tensor([2, 3], [1]), "a stride for each of 2 sizes"),
        (lambda fd: fd.define_tensor(shape=[2], strides=[1]), "define_tensor: "),
        (lambda fd: fd.define_scalar("x"), "a Python number is needed"),
        (lambda fd: fd.add_output(torch.ones(2)), "a number, or a number or tensor"),
        (lambda fd: fd.sched.inline_most(), "kernels are not scheduled by hand"),
        (lambda fd: fd.ops.scaled_mm(1, 2, 3), "fd.ops.scaled_mm: a product with block scales"),
        (lambda fd: fd.ops.nv_block_quantize(1), "no 4-bit floats"),
        (lambda fd: fd.execute([]), "the fusion has no output; call add_output"),
    ],
)
def test_what_a_definition_refuses(define: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message), FusionDefinition() as fd:
        define(fd)


def test_what_a_call_refuses() -> None:
    fd = defined(lambda fd, x, n: fd.ops.mul(x, n), [torch.randn(3, 4), 2])
    for inputs, message in (
        ([torch.randn(3, 4)], "takes 2 inputs, found 1"),
        ([torch.randn(3, 4), 2.5], "input 1 must be a number of dtype i64"),
        ([torch.randn(3), 2], "input 0 must be a tensor"),
        ([torch.randn(3, 4).double(), 2], "input 0 must be a tensor"),
        (torch.randn(2, 4), r"given as one list, found f32\[2, 4\]; call it with"),
    ):
        with pytest.raises(ProgramError, match=message):
            fd.execute(inputs)
    with pytest.raises(ProgramError, match="all must be on one device, meta"):
        fd.execute([torch.randn(3, 4), 2], device="meta")
    with pytest.raises(ProgramError, match="as one list, found 2 arguments; call execute"):
        fd.execute(torch.randn(3, 4), 2)
    x = torch.randn(3)
    fd = defined(lambda fd, x, n, y, z: fd.ops.add(x, y), [x, 2, x, x])
    with pytest.raises(ProgramError, match="input 0 on meta, inputs 2 and 3 on cpu found, all"):
        fd.execute([x.to("meta"), 2, x, x])


def test_values_of_another_fusion() -> None:
    with FusionDefinition() as one:
        x = one.define_tensor([-1])
    with FusionDefinition() as two, pytest.raises(DefinitionError, match="belongs to another"):
        two.ops.exp(x)


def test_a_fusion_that_was_called_is_as_it_is() -> None:
    fd = defined(lambda fd, x: fd.ops.exp(x), [torch.randn(3)])
    fd.execute([torch.randn(3)])
    with pytest.raises(DefinitionError, match="define another FusionDefinition"):
        fd.define_tensor([-1])
    with pytest.raises(DefinitionError, match="define another FusionDefinition"), fd:
        pass


def test_unknown_ops_are_attribute_errors() -> None:
    fd = FusionDefinition()
    assert not hasattr(fd.ops, "no_such_op")
    assert "welford" in dir(fd.ops)
    assert "sum of" not in (fd.ops.sum.__doc__ or "")
    assert "dims" in str(fd.ops.sum.__signature__)  # type: ignore[attr-defined]


def test_outputs_that_alias_inputs_are_written_and_hidden() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        y = fd.define_tensor([-1, -1], dtype=DataType.BFloat16)
        wide = fd.ops.cast(y, DataType.Float)
        total = fd.ops.add(x, wide)
        fd.add_output(total, x)
        fd.add_output(fd.ops.mul(x, 2.0))
        fd.add_output(fd.ops.sub(x, wide), wide)  # through the cast, rounded to BFloat16
    x, y = torch.randn(3, 4), torch.randn(3, 4).bfloat16()
    old = x.clone(), y.clone()
    (doubled,) = fd.execute([x, y])
    compare([doubled, x, y], [old[0] * 2, old[0] + old[1], (old[0] - old[1].float()).bfloat16()])
    compare(rebuilt(fd).execute([old[0], old[1]]), [doubled])


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda fd, x, y: fd.add_output(y, fd.ops.exp(x)), "only inputs can be written"),
        (lambda fd, x, y: fd.add_output(fd.ops.sum(x), x), "cannot be written into the input"),
        (lambda fd, x, y: [fd.add_output(y, x), fd.add_output(y, x)], "is written twice"),
    ],
)
def test_aliases_that_are_refused(define: Any, message: str) -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        with pytest.raises(DefinitionError, match=message):
            define(fd, x, y)


def test_a_subclass_defines_itself() -> None:
    class Twice(FusionDefinition):
        def definition(self) -> None:
            self.add_output(self.ops.mul(self.define_tensor([-1]), 2.0))

    fd = Twice()
    x = torch.randn(4)
    compare(fd.execute([x]), [x * 2])
    compare(fd.execute([x]), [x * 2])
    assert "fd.ops.mul" in repr(Twice())


def test_validate_definition() -> None:
    fd = FusionDefinition()
    assert fd.validate_definition() == (False, "the fusion has no output; call add_output")
    fd.add_output(fd.ops.exp(fd.define_tensor([-1])))
    assert fd.validate_definition() == (True, "")


def test_validate() -> None:
    x, y = torch.randn(6, 64), torch.randn(6, 64)
    fd = defined(lambda fd, x, y: (fd.ops.sum(fd.ops.mul(x, y), 1), fd.ops.exp(x)), [x, y])
    fd.validate([x, y])
    fd.validate([x, y], [(x * y).sum(1), x.exp()])
    with pytest.raises(AssertionError, match=r"output 1: .*not close"):
        fd.validate([x, y], [(x * y).sum(1), x.exp() + 1])
    with pytest.raises(AssertionError, match="2 outputs found, 1 references"):
        fd.validate([x, y], [x])


def test_validate_leaves_written_inputs_alone() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.add(x, 1.0), x)
        fd.add_output(fd.ops.rand_like(x))
    x = torch.zeros(5)
    fd.validate([x])
    assert not x.any()


def test_the_text_of_a_definition() -> None:
    fd = defined(
        lambda fd, x, n: (
            fd.ops.where(fd.ops.gt(x, float("inf")), 1e-6, n),
            fd.ops.mul(x, complex(0, float("nan"))),
            fd.ops.reshape(x, [x.size(0), x.shape()[1], 1]),
            *fd.ops.var_mean(x, [0], correction=0),
        ),
        [torch.randn(3, 4), 2.5],
    )
    assert repr(fd) == (
        "def mdfuse_fusion(fd: FusionDefinition) -> None:\n"
        "    tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float,"
        " is_cpu=False, stride_order=[1, 0])\n"
        "    c1 = fd.define_scalar(dtype=DataType.Double)\n"
        '    tv2 = fd.ops.gt(tv0, float("inf"))\n'
        "    tv3 = fd.ops.where(tv2, 1e-06, c1)\n"
        '    tv4 = fd.ops.mul(tv0, complex(0.0, float("nan")))\n'
        "    c5 = fd.ops.size(tv0, 0)\n"
        "    c6, c7 = fd.ops.shape(tv0)\n"
        "    tv8 = fd.ops.reshape(tv0, [c5, c7, 1])\n"
        "    tv9, tv10 = fd.ops.var_mean(tv0, [0], correction=0)\n"
        "    fd.add_output(tv3)\n"
        "    fd.add_output(tv4)\n"
        "    fd.add_output(tv8)\n"
        "    fd.add_output(tv9)\n"
        "    fd.add_output(tv10)\n"
    )
    assert repr(FusionDefinition()) == (
        "def mdfuse_fusion(fd: FusionDefinition) -> None:\n    pass\n"
    )


def test_the_fusion_is_shown() -> None:
    fd = defined(lambda fd, x: fd.ops.exp(x), [torch.randn(3, 4)])
    assert len(fd.fusion.inputs()) == len(fd.fusion.outputs()) == 1
    assert "exp(%0) : f32[s0, s1]" in str(fd.fusion)
    assert fd.executable.fusion is not None
    assert "region" in fd.executable.stages()


# The ops of nvFuser's direct bindings.
SURFACE = """
abs acos acosh asin asinh atan atanh ceil cos cosh exp exp2 expm1 erf erfc erfinv erfcinv floor
frac lgamma log log10 log1p log2 neg logical_not bitwise_not relu rand_like randn_like reciprocal
round rsqrt set segment_set sign sigmoid signbit silu sin sinh sqrt tan tanh trunc isfinite isinf
isnan isneginf isposinf isreal real imag add atan2 div truediv fmod mul nextafter pow remainder sub
minimum maximum mod eq ge gt le lt ne logical_and logical_or bitwise_and bitwise_or bitwise_xor
bitwise_left_shift bitwise_right_shift logical_right_shift gcd complex lerp where clamp threshold
addcmul max min prod sum var var_mean welford cumsum cumprod cummin cummax cast triu broadcast
broadcast_in_dim reshape permute expand squeeze slice size shape stride_order pad cat index_select
select gather take_along_axis scatter topk argsort embedding_fwd iota full normal uniform matmul
linear grouped_mm scaled_mm cutlass_nvfp4_grouped_mm preprocess_grouped_matmul_input_sf sdpfa_fwd
sdpfa_bwd nv_block_quantize nv_grouped_block_quantize
"""


def test_every_op_is_there_or_refused() -> None:
    assert set(SURFACE.split()) == OPS.keys() | REFUSED.keys()
    assert not OPS.keys() & REFUSED.keys()
    assert all(function.__doc__ for function in OPS.values())
    assert {"mesh_x", "mesh_y", "mesh_z", "stream"} < {p.name for p in ParallelType}


def test_every_op_is_tested() -> None:
    """Each name stands in some test as ``fd.ops.name``, or in a table of names."""
    others = [p for p in Path(__file__).parent.glob("test_*.py") if p != Path(__file__)]
    texts = "".join(p.read_text() for p in others)
    assert not [n for n in OPS if not re.search(rf'ops\.{n}\(|^    "{n}": ', texts, re.M)]


WITHOUT_THUNDER = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "thunder":
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import torch
from thunder_mdfuse import DataType, FusionDefinition
with FusionDefinition() as fd:
    fd.add_output(fd.ops.exp(fd.define_tensor([-1], dtype=DataType.Float)))
x = torch.randn(4)
assert torch.equal(fd.execute([x])[0], x.exp())
assert "thunder" not in sys.modules
"""


def test_thunder_is_not_needed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THUNDER],
        env=knobs.child_environment(PYTHONPATH=":".join(filter(None, sys.path))),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
