"""What a thread keeps of a reduction: a number or, for argmax, a number and where it stands."""

from thunder_mdfuse.codegen.exprs import CPP_TYPES, functor
from thunder_mdfuse.schedule.plan import KernelPlan


class Accumulator:
    """The C++ of reduction ``n`` of a plan."""

    def __init__(self, plan: KernelPlan, n: int) -> None:
        instr = plan.body[n]
        value = plan.body[instr.args[0]] if instr.is_arg_reduction else instr
        self.name = f"a{n}"
        self.functor = functor(instr.op, instr.dtype)
        self.paired = instr.is_arg_reduction
        number = CPP_TYPES[value.dtype.compute]
        self.index = "mdf::i64" if plan.launch.wide_index else "mdf::i32"
        pair = "mdf::Indexed" if plan.launch.wide_index else "mdf::Indexed32"
        self.cpp = f"{pair}<{number}>" if self.paired else number
        self.scratch = f"scratch_{'at_' if self.paired else ''}{value.dtype.compute}"
        self.result = CPP_TYPES[instr.dtype.compute]

    @property
    def identity(self) -> str:
        """What nothing was added to yet."""
        return f"{self.functor}::identity<{self.cpp}>()"

    def fields(self, buffers: list[int]) -> list[tuple[int, str]]:
        """Each of the workspaces ``buffers`` with the part of the accumulator that it keeps."""
        parts = (f"{self.name}.value", f"{self.name}.index") if self.paired else (self.name,)
        return list(zip(buffers, parts, strict=True))

    def of(self, parts: list[str]) -> str:
        """An accumulator of the ``parts`` that ``fields`` tells apart."""
        if not self.paired:
            return parts[0]
        value, index = parts
        return f"{self.cpp}{{{value}, static_cast<{self.index}>({index})}}"

    def outcome(self, whole: str) -> str:
        """The reduction's result, from the accumulator ``whole`` of all threads."""
        return f"{whole}.index" if self.paired else whole
