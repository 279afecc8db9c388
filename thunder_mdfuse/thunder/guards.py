"""Guards of a call: what the prologue of a traced function asks, in little time.

A function that reads a hundred parameters has hundreds of guards in every call. Each function here
asks what Thunder's of the same purpose asks, and leaves to it whatever does not hold at once.
"""

import weakref
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from thunder.executors import pythonex
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from thunder_mdfuse.comm.specs import Seen
from thunder_mdfuse.comm.team import mesh_digest
from thunder_mdfuse.errors import ExecutorError

_device_names: dict[torch.device, str] = {}


def check_tensor(
    t: Any, shape: tuple[Any, ...], device: str, dtype: torch.dtype, requires_grad: bool
) -> None:
    """Raise ``AssertionError`` unless ``t`` is a tensor with this metadata."""
    if (
        isinstance(t, torch.Tensor)
        and t.shape == shape
        and t.dtype is dtype
        and t.requires_grad is requires_grad
    ):
        found = t.device
        name = _device_names.get(found)
        if name is None:
            name = _device_names[found] = str(found)
        if name == device:
            return
    # Sizes that are symbols, or what does not fit and is to be said.
    pythonex._check_tensor_shape_and_metadata_impl(t, shape, device, dtype, requires_grad)


def check_plain_tensor(
    t: Any, shape: tuple[Any, ...], device: str, dtype: torch.dtype, requires_grad: bool
) -> None:
    """As ``check_tensor``, for what was no DTensor when it was traced: with one, the function is
    another. Thunder's own guard takes either for the other.
    """
    if isinstance(t, DTensor):
        raise AssertionError(f"traced with a tensor of {shape}, called with a DTensor")
    check_tensor(t, shape, device, dtype, requires_grad)


def check_number(n: Any, value: Any) -> None:
    """Raise ``RuntimeError`` unless ``n`` is ``value`` and of its type; NaN is NaN."""
    if type(n) is not type(value) or n != value:
        pythonex._check_number_type_and_value_impl(n, value)


_texts: dict[int, tuple[Seen, str]] = {}


def form(value: Any) -> str:
    """What a function may have asked of an argument without reading it: where there is nothing, and
    what lists, tuples, dicts and dataclasses hold how many things.
    """
    if value is None:
        return "-"
    if isinstance(value, torch.Tensor):
        return "."
    name = type(value).__name__
    if isinstance(value, tuple | list):
        return f"{name}({''.join(map(form, value))})"
    if isinstance(value, dict):
        return f"{name}({', '.join(f'{key!r}: {form(v)}' for key, v in value.items())})"
    if is_dataclass(value):
        return f"{name}({''.join(form(getattr(value, f.name, None)) for f in fields(value))})"
    return "."


def form_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The forms of all arguments, keywords in the order of their names."""
    found = "".join(map(form, args))
    return found + "".join(f" {key}={form(kwargs[key])}" for key in sorted(kwargs))


def check_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], text: str) -> None:
    """Raise ``AssertionError`` unless ``text`` is the form of the call. Thunder asks for what was
    read: a trace for no mask would be taken for a mask, one for a dict of two for a dict of three.
    """
    found = form_of_call(args, kwargs)
    if found != text:
        raise AssertionError(f"traced for arguments of the form {text!r}, called with {found!r}")


class SpecText:
    """Prints as what a spec is guarded by: torch's own text does not say which ranks are in the
    mesh, and in what order.
    """

    def __init__(self, spec: DTensorSpec) -> None:
        self._text = f"{spec!r}, mesh {mesh_digest(spec.mesh)}"

    def __repr__(self) -> str:
        return self._text


def check_spec(spec: DTensorSpec, text: str) -> None:
    """Raise ``ExecutorError`` unless ``text`` is the ``SpecText`` of ``spec``.

    A text takes longer than all other guards of a DTensor, so it is made once for a spec.
    """
    known = _texts.get(id(spec))
    if known is None or not known[0].holds(spec):
        if known is None:
            weakref.finalize(spec, _texts.pop, id(spec))
        known = _texts[id(spec)] = Seen(spec), repr(SpecText(spec))
    if known[1] != text:
        raise ExecutorError(f"traced with a DTensor of {text}, called with one of {known[1]}")
