"""Axes: a kernel's domain with as few axes as its index arithmetic allows.

Axes of extent 1 vanish (their symbol is 0 everywhere already). Axes are ordered as the memory of
the main tensor runs, and neighbours merge when every expression of the kernel steps over the pair
as over one axis, which makes a contiguous pointwise kernel one-dimensional whatever its rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.sizes import Size, symbol
from thunder_mdfuse.schedule.plan import (
    Axis,
    Bound,
    Draw,
    Index,
    InRange,
    Instr,
    KernelPlan,
    Load,
    Position,
    Store,
)


def expressions(body: Sequence[Instr], stores: Sequence[Store]) -> list[Size]:
    """Every expression over the domain's symbols in a kernel."""
    found: list[Size] = [s.offset for s in stores]
    for instr in body:
        detail = instr.detail
        if isinstance(detail, Load):
            found += [detail.offset, *(b.index for b in detail.mask)]
        elif isinstance(detail, Index):
            found.append(detail.value)
        elif isinstance(detail, Draw):
            found.append(detail.counter)
        elif isinstance(detail, InRange):
            found += [b.index for b in detail.bounds]
        elif isinstance(detail, Position):
            found += [b.index for b in detail.mask]
    return found


def rewritten(plan: KernelPlan, change: Callable[[Size], Size]) -> KernelPlan:
    """``plan`` with every expression over the domain's symbols changed."""
    return replace(
        plan,
        body=tuple(_rewrite_instr(i, change) for i in plan.body),
        stores=tuple(replace(s, offset=change(s.offset)) for s in plan.stores),
    )


def _changed(bounds: tuple[Bound, ...], change: Callable[[Size], Size]) -> tuple[Bound, ...]:
    return tuple(Bound(change(b.index), b.extent) for b in bounds)


def _rewrite_instr(instr: Instr, change: Callable[[Size], Size]) -> Instr:
    detail: Any = instr.detail
    if isinstance(detail, Load):
        detail = replace(detail, offset=change(detail.offset), mask=_changed(detail.mask, change))
    elif isinstance(detail, Index):
        detail = Index(change(detail.value))
    elif isinstance(detail, Draw):
        detail = replace(detail, counter=change(detail.counter))
    elif isinstance(detail, InRange):
        detail = replace(detail, bounds=_changed(detail.bounds, change))
    elif isinstance(detail, Position):
        detail = replace(detail, mask=_changed(detail.mask, change))
    return replace(instr, detail=detail)


def ordered(axes: Sequence[Axis], strides: dict[str, int]) -> list[Axis]:
    """``axes`` from the slowest to the fastest in the tensor that has these ``strides``."""
    known = [a for a in axes if a.extent != 1]
    return sorted(known, key=lambda a: -strides.get(a.name, 0))


def merged(plan: KernelPlan) -> KernelPlan:
    """``plan`` with neighbouring row axes and neighbouring column axes merged where possible."""
    plan, rows = _merge(plan, plan.rows)
    plan, columns = _merge(plan, plan.columns)
    return replace(plan, rows=rows, columns=columns)


def _merge(plan: KernelPlan, found: tuple[Axis, ...]) -> tuple[KernelPlan, tuple[Axis, ...]]:
    axes = list(found)
    for at in range(len(axes) - 2, -1, -1):
        outer, inner = axes[at], axes[at + 1]
        if not all(_steps_as_one(e, outer, inner) for e in expressions(plan.body, plan.stores)):
            continue
        axes[at : at + 2] = [Axis(inner.name, outer.extent * inner.extent)]
        gone: dict[str, Size] = {outer.name: 0}
        plan = rewritten(plan, partial(sizes.substitute, values=gone))
        body = tuple(_renamed(i, outer.name, inner.name) for i in plan.body)
        plan = replace(plan, body=body)
    return plan, tuple(axes)


def _renamed(instr: Instr, old: str, new: str) -> Instr:
    if old not in instr.depends:
        return instr
    return replace(instr, depends=(instr.depends - {old}) | {new})


def _steps_as_one(expr: Size, outer: Axis, inner: Axis) -> bool:
    """Whether ``expr`` is linear in both and a step of ``outer`` equals ``inner.extent`` steps."""
    a, b = sizes.coefficient(expr, outer.name), sizes.coefficient(expr, inner.name)
    if a is None or b is None:
        return False
    return bool(a[0] == sizes.multiply(b[0], inner.extent))


def nested_positions(axes: Sequence[Axis], flat: str) -> list[tuple[str, Size]]:
    """``positions`` as definitions in order, each by a symbol that is ``flat`` or defined before.

    One division for each axis but one, where ``positions`` has almost two.
    """
    found: list[tuple[str, Size]] = []
    whole: Size = symbol(flat)
    for n, axis in enumerate(reversed(axes)):
        if n == len(axes) - 1:
            found.append((axis.name, whole))
            break
        found.append((axis.name, sizes.mod(whole, axis.extent)))
        whole = sizes.floordiv(whole, axis.extent)
        if n < len(axes) - 2:
            found.append((f"{flat}{n + 1}", whole))
            whole = symbol(f"{flat}{n + 1}")
    return found


def positions(axes: Sequence[Axis], flat: str) -> dict[str, Size]:
    """Each axis's symbol as an expression of ``flat``, the row-major position in all of them."""
    result: dict[str, Size] = {}
    inner: Size = 1
    for n, axis in enumerate(reversed(axes)):
        whole = sizes.floordiv(symbol(flat), inner) if inner != 1 else symbol(flat)
        last = n == len(axes) - 1
        result[axis.name] = whole if last else sizes.mod(whole, axis.extent)
        inner = sizes.multiply(inner, axis.extent)
    return result
