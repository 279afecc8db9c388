"""Types of values: dtypes, meshes, placements, tensors and scalars. All frozen, equal by structure.

A mesh here is *logical*: names and sizes of its axes and a digest of the device ids. The process
groups belong to the torch ``DeviceMesh`` that a program is given at call time.
"""

from dataclasses import dataclass, replace
from enum import Enum

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir.sizes import Size


class DType(Enum):
    """An element type: ``(text, bytes, kind)`` with kind one of bool, uint, int, float, complex."""

    BOOL = ("bool", 1, "bool")
    U8 = ("u8", 1, "uint")
    I8 = ("i8", 1, "int")
    I16 = ("i16", 2, "int")
    I32 = ("i32", 4, "int")
    I64 = ("i64", 8, "int")
    F16 = ("f16", 2, "float")
    BF16 = ("bf16", 2, "float")
    F32 = ("f32", 4, "float")
    F64 = ("f64", 8, "float")
    F8E4M3 = ("f8e4m3", 1, "float")
    F8E5M2 = ("f8e5m2", 1, "float")
    C64 = ("c64", 8, "complex")
    C128 = ("c128", 16, "complex")

    @property
    def text(self) -> str:
        return self.value[0]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.value[1]

    @property
    def kind(self) -> str:
        return self.value[2]

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_low_precision(self) -> bool:
        """Whether arithmetic on it is done in f32 and rounded on the way out."""
        return self.kind == "float" and self.itemsize < 4

    @property
    def compute(self) -> "DType":
        """The dtype in which kernels do its arithmetic."""
        return DType.F32 if self.is_low_precision else self

    def __str__(self) -> str:
        return self.text


DTYPES = {d.text: d for d in DType}


@dataclass(frozen=True)
class MeshAxis:
    """One axis of a mesh: its name and its number of positions."""

    name: str
    size: int


@dataclass(frozen=True)
class Mesh:
    """A logical mesh. ``digest`` tells meshes of equal shape but other device ids apart."""

    axes: tuple[MeshAxis, ...]
    digest: str = ""

    def __post_init__(self) -> None:
        names = [a.name for a in self.axes]
        if len(set(names)) != len(names):
            raise IRError(f"mesh axis names must differ, found {names}")

    @property
    def ranks(self) -> int:
        """Number of positions in the whole mesh."""
        total = 1
        for axis in self.axes:
            total *= axis.size
        return total

    def __str__(self) -> str:
        axes = ", ".join(f"{a.name}={a.size}" for a in self.axes)
        return f"mesh[{axes}]" + (f" digest {self.digest}" if self.digest else "")


REDUCTIONS = ("sum", "avg", "min", "max", "product")


@dataclass(frozen=True)
class Replicate:
    """Every position of the axis holds the whole value."""

    def __str__(self) -> str:
        return "Replicate"


@dataclass(frozen=True)
class Shard:
    """Position ``i`` holds the ``i``-th chunk of tensor dim ``dim`` (DTensor's chunk rule)."""

    dim: int

    def __str__(self) -> str:
        return f"Shard({self.dim})"


@dataclass(frozen=True)
class StridedShard:
    """Tensor dim ``dim`` is cut into ``split`` times axis-size chunks, dealt out round robin."""

    dim: int
    split: int

    def __str__(self) -> str:
        return f"StridedShard({self.dim}, {self.split})"


@dataclass(frozen=True)
class Partial:
    """The value is the reduction ``op`` over the axis of what its positions hold."""

    op: str = "sum"

    def __post_init__(self) -> None:
        if self.op not in REDUCTIONS:
            raise IRError(f"Partial({self.op!r}): the reduction must be one of {REDUCTIONS}")

    def __str__(self) -> str:
        return f"Partial({self.op})"


Placement = Replicate | Shard | StridedShard | Partial
REPLICATE = Replicate()
Placements = tuple[Placement, ...]


@dataclass(frozen=True)
class TensorType:
    """A tensor: dtype, shape and, when it lives on a mesh, one placement for each mesh axis."""

    dtype: DType
    shape: tuple[Size, ...]
    placements: Placements | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def placed(self, placements: Placements | None) -> "TensorType":
        """The same tensor with other placements."""
        return replace(self, placements=placements)

    def __str__(self) -> str:
        body = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        if self.placements is None:
            return body
        return f"{body} @ [{', '.join(map(str, self.placements))}]"


@dataclass(frozen=True)
class ScalarType:
    """A number that the host knows: bool, i64, f64 or c128. Beside tensors it is weakly typed."""

    dtype: DType

    def __str__(self) -> str:
        return str(self.dtype)


Type = TensorType | ScalarType
