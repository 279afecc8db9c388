"""What a thread keeps of a reduction: a number, an element and where it is, or moments."""

from dataclasses import dataclass

from thunder_mdfuse.codegen.exprs import CPP_TYPES, functor, literal
from thunder_mdfuse.schedule.plan import KernelPlan


@dataclass(frozen=True)
class _Running:
    """An accumulator of ``csrc/device``: its struct, that one's fields, how two are merged, how a
    value is added and what it comes to. ``filler``: where a whole vector is added at once, what
    stands in it for an element that is none.
    """

    struct: str
    fields: tuple[str, ...]
    merge: str
    push: str
    outcome: str
    filler: str = ""


_SUM_EXP = ("SumExp", ("high", "sum"), "SumExpMerge", "sum_exp_push")
_RUNNING = {
    "reduce_sum_exp": _Running(*_SUM_EXP, "mdf::sum_exp_of({0})", "lowest"),
    "reduce_sum_exp_finite": _Running(*_SUM_EXP, "mdf::sum_exp_finite_of({0})", "lowest"),
    "reduce_sum_exp_floored": _Running(*_SUM_EXP, "mdf::sum_exp_floored_of({0})", "lowest"),
    "reduce_squares": _Running(
        "Welford", ("mean", "m2", "count"), "WelfordMerge", "welford_push", "{0}.m2"
    ),
}


class Accumulator:
    """The C++ of reduction ``n`` of a plan."""

    def __init__(self, plan: KernelPlan, n: int) -> None:
        instr = plan.body[n]
        value = plan.body[instr.args[0]] if instr.is_arg_reduction else instr
        self.n, self.name = n, f"a{n}"
        self.paired = instr.is_arg_reduction
        self.number = value.dtype.compute
        self.index = "mdf::i64" if plan.launch.wide_index else "mdf::i32"
        number = CPP_TYPES[self.number]
        self.running = _RUNNING.get(instr.op)
        if self.running is not None:
            self.functor = f"mdf::{self.running.merge}"
            self.cpp = f"mdf::{self.running.struct}<{number}>"
        else:
            self.functor = functor(instr.op, instr.dtype)
            pair = "mdf::Indexed" if plan.launch.wide_index else "mdf::Indexed32"
            self.cpp = f"{pair}<{number}>" if self.paired else number
        self.scratch = f"scratch{n}"
        self.result = CPP_TYPES[instr.dtype.compute]

    @property
    def identity(self) -> str:
        """What nothing was added to yet."""
        return f"{self.functor}::identity<{self.cpp}>()"

    @property
    def filler(self) -> str:
        """What adds nothing to a vector that is added at once; empty: values come one by one."""
        text = "" if self.running is None else self.running.filler
        return literal(text, self.number) if text else ""

    def pushed(self, accumulator: str, value: str, place: str) -> str:
        """The accumulator after one more value (or vector, where it has a ``filler``), that of
        element ``place`` of the row.
        """
        if self.running is not None:
            return f"mdf::{self.running.push}({accumulator}, {value})"
        if self.paired:
            value = self.of([value, place])
        return f"{self.functor}::apply({accumulator}, {value})"

    def fields(self, buffers: list[int]) -> list[tuple[int, str]]:
        """Each of the workspaces ``buffers`` with the part of the accumulator that it keeps."""
        names: tuple[str, ...] = ("value", "index") if self.paired else ()
        if self.running is not None:
            names = self.running.fields
        parts = [f"{self.name}.{name}" for name in names] or [self.name]
        return list(zip(buffers, parts, strict=True))

    def of(self, parts: list[str]) -> str:
        """An accumulator of the ``parts`` that ``fields`` tells apart."""
        if self.running is not None:
            return f"{self.cpp}{{{', '.join(parts)}}}"
        if not self.paired:
            return parts[0]
        value, index = parts
        return f"{self.cpp}{{{value}, static_cast<{self.index}>({index})}}"

    def outcome(self, whole: str) -> str:
        """The reduction's result, from the accumulator ``whole`` of all threads."""
        if self.running is not None:
            return self.running.outcome.format(whole)
        return f"{whole}.index" if self.paired else whole

    def declared(self, whole: str) -> list[str]:
        """The statements that declare the result, and of a running one what it is the result of."""
        if self.running is None:
            return [f"const {self.result} v{self.n} = {self.outcome(whole)};"]
        outcome = self.outcome(f"w{self.n}")
        return [f"const auto w{self.n} = {whole};", f"const {self.result} v{self.n} = {outcome};"]
