"""The explicit Python API: a fusion written op by op.

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        wide = fd.ops.cast(x, DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.mul(wide, wide), -1))
    (squares,) = fd.execute([torch.randn(8, 512, dtype=torch.bfloat16)])

Names and meanings follow nvFuser's direct bindings. The fusion is planned at the first call with
inputs of a class (ranks, dtypes, order of dims, alignment); sizes of -1 may then change freely.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, overload

import torch
from torch.distributed.tensor import DTensor

from thunder_mdfuse.direct import inputs as given
from thunder_mdfuse.direct.calls import Call, copied, flat, text_of
from thunder_mdfuse.direct.compare import assert_outputs, copied_tensor, evaluated
from thunder_mdfuse.direct.distributed import MOST_PROGRAMS, Distributed, Opened
from thunder_mdfuse.direct.dtypes import AnyDType, DataType, data_type
from thunder_mdfuse.direct.ops import Ops, Sched, signature
from thunder_mdfuse.direct.scope import Scope
from thunder_mdfuse.direct.table import OPS
from thunder_mdfuse.direct.values import Number, Scalar, TensorView
from thunder_mdfuse.direct.view import Sharding
from thunder_mdfuse.errors import DefinitionError, IRError, ProgramError
from thunder_mdfuse.executable import Executable, compile_fusion
from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.text import render
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.lru import CacheStats
from thunder_mdfuse.repro import repro_script
from thunder_mdfuse.runtime.ranges import Ranges

Output = torch.Tensor | Number


class FusionDefinition:
    """A fusion under definition, and then the function that it is.

    Used as a context manager, or subclassed with a method ``definition(self)``, which is run before
    the first call. All that a definition can do wrong is a ``DefinitionError``, raised by the call
    that did it.
    """

    def __init__(self) -> None:
        self._scope = Scope(self._perform, self._tell)
        self._calls: list[Call] = []
        self._inputs: list[TensorView | Scalar] = []
        self._outputs: list[tuple[TensorView | Scalar, TensorView | None]] = []
        self._executable: Executable | None = None
        self._ranges = Ranges(type(self).__name__)
        self._distributed: Distributed | None = None
        self._meshed: dict[TensorView, None] = {}  # those that the author gave a mesh
        self._carries = self._writes = False
        self._defined = False
        self.ops = Ops(self._perform)
        self.sched = Sched()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    # --- inputs -----------------------------------------------------------------------------

    @overload
    def define_tensor(
        self,
        shape: Sequence[int],
        contiguity: Sequence[bool | None] | bool = False,
        dtype: AnyDType = DataType.Float,
        is_cpu: bool = False,
        stride_order: Sequence[int] = (),
    ) -> TensorView: ...

    @overload
    def define_tensor(
        self,
        sizes: Sequence[int],
        strides: Sequence[int],
        dtype: AnyDType = DataType.Float,
        static_sizes: bool = False,
        is_cpu: bool = False,
    ) -> TensorView: ...

    def define_tensor(self, *args: Any, **kwargs: Any) -> TensorView:
        """A further input tensor, by shape or by the sizes and strides of an example.

        ``shape``: -1 is any size, 1 a dim that is broadcast, others are fixed. ``contiguity`` and
        ``stride_order`` say what the layout will be; kernels are made for the strides that they
        meet, so that other layouts run as well. ``is_cpu``: a 0-dim tensor on the CPU.
        ``static_sizes``: the example's sizes are fixed. Raises ``DefinitionError`` for what does
        not fit together.
        """
        second = args[1] if len(args) > 1 else kwargs.get("contiguity", False)
        strided = "sizes" in kwargs or "strides" in kwargs
        if isinstance(second, Sequence) and any(type(n) is int for n in second):
            strided = True
        make = given.by_sizes if strided else given.by_shape
        return self._tensor(_bound("define_tensor", make, args, kwargs))

    def _tensor(self, arguments: dict[str, Any]) -> TensorView:
        self._check_open()
        value = self._scope.input(given.tensor_type(self._scope, arguments))
        assert isinstance(value, TensorView)
        self._inputs.append(value)
        self._record("define_tensor", (), arguments, value)
        return value

    def from_pytorch(self, tensor: torch.Tensor, static_sizes: bool = False) -> TensorView:
        """A further input like ``tensor``: its dtype, and its sizes as -1 unless ``static_sizes``;
        a size of 1 stays 1.
        """
        is_cpu = tensor.device.type == "cpu" and not tensor.ndim
        dtype = data_type(tensor.dtype)
        return self._tensor(
            given.by_sizes(tensor.shape, tensor.stride(), dtype, static_sizes, is_cpu)
        )

    def define_scalar(
        self, value: Number | AnyDType | None = None, dtype: AnyDType | None = None
    ) -> Scalar:
        """The constant ``value``; or, without one, a number that the fusion is given at each call.

        The given number is of Python's bool, int, float or complex, whichever ``dtype`` (Double) is
        a kind of. Its value is no part of what is compiled.
        """
        self._check_open()
        if isinstance(value, DataType | torch.dtype):
            value, dtype = None, value
        if value is None:
            asked = DataType.Double if dtype is None else dtype
            made = self._scope.scalar_input(given.number_dtype(asked))
            self._inputs.append(made)
            self._record("define_scalar", (), {"dtype": asked}, made)
            return made
        number = given.constant(value, dtype)
        made = Scalar(self._scope, self._scope.scalar(number).ir_dtype, known=number)
        self._record("define_scalar", (number,), {}, made)
        return made

    def define_vector(self, size: int | Sequence[int]) -> list[Scalar]:
        """``size`` numbers (Int) that the fusion is given; or, of a list, these as constants."""
        if isinstance(size, int):
            return [self.define_scalar(dtype=DataType.Int) for _ in range(size)]
        return [self.define_scalar(n, DataType.Int) for n in size]

    # --- ops and outputs --------------------------------------------------------------------

    def _perform(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The op ``name`` on the author's arguments, recorded."""
        self._check_open()
        try:
            signature(name).bind(*args, **kwargs)
            found = OPS[name](self._scope, *args, **kwargs)
        except TypeError as e:
            raise DefinitionError(f"fd.ops.{name}: {e}") from e
        except (DefinitionError, IRError) as e:
            raise DefinitionError(f"fd.ops.{name}: {e}") from e
        self._record(f"ops.{name}", args, kwargs, found)
        return list(found) if name == "shape" else found

    def _record(self, function: str, args: Any, kwargs: Any, found: Any) -> None:
        listed = isinstance(found, tuple | list)
        results = () if found is None else flat(found)
        self._calls.append(Call(function, copied(args), copied(kwargs), results, listed))

    def _tell(self, value: TensorView, call: str, *args: Any) -> None:
        """A method of ``value`` that says how it is spread over a mesh, recorded."""
        self._check_open()
        self._meshed[value] = None
        self._calls.append(Call(call, copied(args), {}, (), of=value))

    def add_output(self, out: TensorView | Scalar, alias_input: TensorView | None = None) -> None:
        """``out`` leaves the fusion, after the outputs before it.

        With ``alias_input`` it is instead written into that input (cast to its dtype), after all
        that reads the input, and is not among what ``execute`` returns.
        """
        self._check_open()
        value = self._scope.operand(out)
        if alias_input is None:
            self._outputs.append((value, None))
            self._record("add_output", (out,), {}, None)
            return
        target = self._target(alias_input)
        value = self._scope.cast(self._scope.tensor(value), target.type.dtype)
        if value.ndim != target.ndim:
            raise DefinitionError(f"{value!r} cannot be written into the input {target!r}")
        for d, size in enumerate(target.type.shape):
            self._scope.require(value, d, size)
        self._outputs.append((self._scope.reshape(value, target.type.shape), target))
        self._record("add_output", (out, alias_input), {}, None)

    def _target(self, value: TensorView) -> TensorView:
        """The input that ``value`` is, or is a cast of."""
        use = self._scope.tensor(value, "alias_input").use
        while self._scope.builder.nodes[use.node].op == "cast":
            (use,) = self._scope.builder.nodes[use.node].args
        for known in self._inputs:
            if isinstance(known, TensorView) and known.use == use:
                if any(target is known for _, target in self._outputs):
                    raise DefinitionError(f"the input {known!r} is written twice")
                return known
        raise DefinitionError(f"{value!r} is no input, and only inputs can be written")

    def _check_open(self) -> None:
        if self._executable is not None or self._distributed is not None:
            raise DefinitionError(
                "the fusion has been called, and is as it is; define another FusionDefinition"
            )

    # --- what was defined -------------------------------------------------------------------

    def definition(self) -> None:
        """What a subclass defines; run once, before the first call."""

    @property
    def fusion(self) -> "FusionView":
        """What is defined so far."""
        self._define()
        return FusionView(self)

    def _define(self) -> None:
        if not self._defined:
            self._defined = True
            self.definition()

    def validate_definition(self) -> tuple[bool, str]:
        """Whether the fusion can be called, and if not, why."""
        try:
            self._define()
            self._finished()
        except (DefinitionError, IRError) as e:
            return False, str(e)
        return True, ""

    def _finished(self) -> Fusion:
        if not self._outputs:
            raise DefinitionError("the fusion has no output; call add_output")
        self._writes = any(target is not None for _, target in self._outputs)
        self._carries = bool(self._scope.sized) or not any(
            isinstance(value, TensorView) for value in self._inputs
        )
        return verify(self._scope.finish(self._outputs, self._carries), "definition")

    @property
    def executable(self) -> Executable:
        """The compiled fusion: its stages, kernels' text and report. Ends the definition."""
        if self._executable is None:
            self._define()
            self._executable = compile_fusion(self._finished(), type(self).__name__)
        return self._executable

    def __repr__(self) -> str:
        """A function ``mdfuse_fusion(fd)`` that defines this fusion again."""
        self._define()
        return text_of(self._calls, "mdfuse_fusion")

    # --- calls ------------------------------------------------------------------------------

    def execute(
        self, inputs: Sequence[Any], *more: Any, device: torch.device | str | int | None = None
    ) -> list[Output]:
        """The outputs for ``inputs``, in order; inputs that outputs alias are written in place.

        ``inputs``: a tensor or number for each input, in the order of definition; lists in it are
        taken apart. ``device``: where a fusion without tensor inputs runs. Raises ``ProgramError``
        for inputs that do not fit, or are not one list, ``DefinitionError`` for a fusion without
        outputs.
        """
        if more:
            raise ProgramError(
                f"execute takes its inputs as one list, found {1 + len(more)} arguments; call "
                "execute([...])"
            )
        if self._meshed and any(value.mesh is not None for value in self._meshed):
            raise DefinitionError(
                "the fusion is defined on a device mesh: call it with execute_with_dtensors"
            )
        return self._returned(self._ranged(self._run, inputs, device))

    def _run(self, inputs: Sequence[Any], device: Any) -> list[Any]:
        executable = self.executable
        if type(inputs) is list and device is None and not self._carries:
            found = executable.again(inputs)
            if found is not None:
                return found
        return executable.run(self._values(self._plain(inputs), device))

    def _returned(self, found: list[Any]) -> list[Any]:
        """``found`` without what is written into inputs."""
        if not self._writes:
            return found
        return [v for v, (_, target) in zip(found, self._outputs, strict=True) if target is None]

    def _ranged(self, run: Callable[..., Any], *args: Any) -> Any:
        return self._ranges.around(run, *args) if self._ranges.wanted() else run(*args)

    def _values(self, values: list[Any], device: Any) -> list[Any]:
        """What the program is called with: ``values`` on one device, and the sizes among them."""
        on = given.device_of(values, device)
        values = [v.to(on) if isinstance(v, torch.Tensor) and v.device != on else v for v in values]
        if self._carries:
            values.append(given.carried([values[p] for p in self._scope.sized], on))
        return values

    def _counted(self, inputs: Sequence[Any]) -> list[Any]:
        """``inputs`` with lists taken apart, one for each that was defined."""
        values = list(given.flattened(inputs))
        if len(values) != len(self._inputs):
            raise ProgramError(f"the fusion takes {len(self._inputs)} inputs, found {len(values)}")
        return values

    def _plain(self, inputs: Sequence[Any]) -> list[Any]:
        """As ``_counted``. Raises ``ProgramError`` for DTensors, which ``execute`` cannot take."""
        values = self._counted(inputs)
        if any(isinstance(v, DTensor) for v in values):
            raise ProgramError(
                "a DTensor was given to a call on plain tensors; use execute_with_dtensors, or "
                "give its to_local()"
            )
        return values

    def execute_with_dtensors(self, in_dtensors: Sequence[Any]) -> list[Any]:
        """The outputs as DTensors over the mesh of ``in_dtensors``, which plain tensors (taken for
        replicated) and numbers may stand beside.

        Raises ``ProgramError`` for inputs that do not fit, ``DefinitionError`` for DTensors on
        another mesh, or with other placements, than the definition says, ``CommError`` when ranks
        disagree or do not come.
        """
        if self._distributed is None:
            self._define()
            self._finished()
            self._distributed = Distributed(
                type(self).__name__, self._scope, list(self._meshed), self._outputs, self._carries
            )
        return self._returned(self._ranged(self._run_distributed, self._distributed, in_dtensors))

    def _run_distributed(self, distributed: Distributed, inputs: Sequence[Any]) -> list[Any]:
        found = distributed.again(inputs) if type(inputs) is list else None
        if found is not None:
            return found
        opened = Opened(self._counted(inputs))
        return distributed.run(self._inputs, opened, self._values(opened.locals, None))

    def get_output_shardings(self) -> list[Sharding | None]:
        """The sharding of every output in the last call on DTensors, in the order of
        ``add_output``: also of those written into an input, and of replicated ones. None for a
        number.

        Raises ``DefinitionError`` before the first such call, and once its mesh is gone.
        """
        found = None if self._distributed is None else self._distributed.shardings
        if found is None:
            raise DefinitionError(
                "there are no shardings before a call of execute_with_dtensors, nor after its mesh "
                "was dropped"
            )
        return found

    def program_stats(self) -> CacheStats:
        """Of this fusion's programs for DTensors, one for each mesh and set of placements.

        Calls of ``execute`` are not counted: all of them run the one ``executable``.
        ``thunder_mdfuse.multidevice.program_stats()`` counts those of the whole process.
        """
        if self._distributed is None:
            return CacheStats(0, 0, 0, 0, MOST_PROGRAMS)
        return self._distributed.stats()

    def validate(
        self,
        inputs: Sequence[Any],
        reference_outputs: Sequence[torch.Tensor] | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        """Call the fusion on copies of ``inputs`` and compare what it returns.

        With ``reference_outputs``, or without them with the program run op by op in torch. The
        tolerances follow from the outputs' dtypes and from how many elements are reduced. Raises
        ``AssertionError`` that names the first output that differs.
        """
        executable = self.executable
        values = self._values(self._plain(inputs), device)
        first, second = ([copied_tensor(v) for v in values] for _ in range(2))
        visible = [i for i, (_, target) in enumerate(self._outputs) if target is None]
        state = torch.get_rng_state()
        found = executable.run(first)
        if reference_outputs is None:
            torch.set_rng_state(state)
            wanted = evaluated(executable, second)
            assert_outputs(executable, found, wanted, range(len(found)))
        else:
            assert_outputs(executable, [found[i] for i in visible], reference_outputs, visible)

    def repro_script_for(self, inputs: Sequence[Any] | None = None) -> str:
        """A script that defines this fusion and, for ``inputs``, calls it on ones like them.

        It runs as it is: under ``python``; and, with DTensors among ``inputs``, on as many ranks as
        this job has, of torchrun or mpirun, or started by itself. Every rank makes the same text
        but for the memory layout of its own local tensors.
        """
        values = None if inputs is None else self._counted(inputs)
        return repro_script(repr(self), values)


class FusionView:
    """What a definition has so far: its inputs, its outputs and its text."""

    def __init__(self, definition: FusionDefinition) -> None:
        self._definition = definition

    def inputs(self) -> list[TensorView | Scalar]:
        """The inputs, in order."""
        return list(self._definition._inputs)

    def outputs(self) -> list[TensorView | Scalar]:
        """The outputs, in order, those that are written into inputs included."""
        return [value for value, _ in self._definition._outputs]

    def __str__(self) -> str:
        return render(self._definition._finished())

    def print_math(self) -> None:
        """Print the program, node by node."""
        print(self)


def _bound(
    name: str, make: Callable[..., dict[str, Any]], args: Any, kwargs: Any
) -> dict[str, Any]:
    try:
        return make(*args, **kwargs)
    except TypeError as e:
        raise DefinitionError(f"{name}: {e}") from e
