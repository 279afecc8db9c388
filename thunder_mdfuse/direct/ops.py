"""``fd.ops``: every op by its name, those that are refused included."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from thunder_mdfuse.direct import elementwise, indexing, products, reductions, shapes
from thunder_mdfuse.direct.table import OPS
from thunder_mdfuse.errors import DefinitionError

TABLES = (elementwise, reductions, shapes, indexing, products)  # imported to fill OPS

_FP4 = (
    "the program has no 4-bit floats and no block scales; quantise outside of the fusion, or use "
    "Float8_e4m3fn with fd.ops.cast and a scale of your own"
)
REFUSED: dict[str, str] = {
    "nv_block_quantize": _FP4,
    "nv_grouped_block_quantize": _FP4,
    "scaled_mm": "a product with block scales is not generated; scale the operands with "
    "fd.ops.mul and multiply them with fd.ops.matmul",
    "cutlass_nvfp4_grouped_mm": _FP4,
    "preprocess_grouped_matmul_input_sf": _FP4,
}


@cache
def signature(name: str) -> inspect.Signature:
    """The author's view of op ``name``: its arguments without the scope."""
    whole = inspect.signature(OPS[name])
    return whole.replace(parameters=list(whole.parameters.values())[1:])


class Ops:
    """``fd.ops``. An attribute is a function that adds its op to the fusion."""

    def __init__(self, perform: Callable[..., Any]) -> None:
        self._perform = perform

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in REFUSED:
            return _refusal(name)
        if name not in OPS:
            raise AttributeError(f"fd.ops has no op {name!r}; dir(fd.ops) lists what it has")

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._perform(name, *args, **kwargs)

        call.__name__, call.__qualname__ = name, f"ops.{name}"
        call.__doc__ = OPS[name].__doc__
        call.__signature__ = signature(name)  # type: ignore[attr-defined]
        return call

    def __dir__(self) -> list[str]:
        return sorted(OPS)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise DefinitionError(f"fd.ops.{name}: {REFUSED[name]}")

    return call


class Sched:
    """``fd.sched``, all of which is refused."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)
        raise DefinitionError(
            f"fd.sched.{name}: kernels are not scheduled by hand here, the compiler plans them; "
            "leave the call out, and see fd.executable.report() for what was planned"
        )
