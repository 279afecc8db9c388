"""CUDA C++ from a plan: the table of families and the writer of each."""

from thunder_mdfuse.codegen.kernel import KernelText, KernelWriter
from thunder_mdfuse.codegen.rows import RowsWriter
from thunder_mdfuse.schedule.plan import KernelPlan

WRITERS: dict[str, type[KernelWriter]] = {
    "pointwise": RowsWriter,
    "row": RowsWriter,
}


def write_kernel(plan: KernelPlan) -> KernelText:
    """The CUDA text of ``plan``. Raises ``CodegenError`` for what no kernel can express."""
    return WRITERS[plan.family](plan).write()
