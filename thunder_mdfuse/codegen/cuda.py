"""CUDA C++ from a plan: the table of families and the writer of each."""

from thunder_mdfuse.codegen.cluster import ClusterWriter
from thunder_mdfuse.codegen.inner_outer import InnerOuterWriter
from thunder_mdfuse.codegen.kernel import KernelText, KernelWriter
from thunder_mdfuse.codegen.outer import OuterWriter
from thunder_mdfuse.codegen.ragged import RaggedWriter
from thunder_mdfuse.codegen.rows import RowsWriter
from thunder_mdfuse.codegen.scans import ScanWriter
from thunder_mdfuse.codegen.transpose import TransposeWriter
from thunder_mdfuse.schedule.plan import KernelPlan

WRITERS: dict[str, type[KernelWriter]] = {
    "pointwise": RowsWriter,
    "row": RowsWriter,
    "outer": OuterWriter,
    "transpose": TransposeWriter,
    "inner_outer": InnerOuterWriter,
    "scan": ScanWriter,
}


def write_kernel(plan: KernelPlan) -> KernelText:
    """The CUDA text of ``plan``. Raises ``CodegenError`` for what no kernel can express."""
    writer = WRITERS[plan.family]
    if plan.launch.cluster > 1:
        writer = ClusterWriter
    elif plan.launch.ragged:
        writer = RaggedWriter
    return writer(plan).write()
