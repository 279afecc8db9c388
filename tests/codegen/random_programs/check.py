"""Runs a random program in the emulator and compares everything that a user could see."""

from collections.abc import Sequence

import torch
from codegen.random_programs.known import Known, faults
from codegen.random_programs.program import Call, Program

from thunder_mdfuse.executable import Executable


def check(program: Program) -> Executable:
    """Raises ``AssertionError`` with the program's text when a call gives something wrong.

    Of an exact program every output has the bits that eager torch gives it, NaN being NaN.
    """
    executable = Executable(program.fusion, f"random{program.seed}")
    for number, call in enumerate(program.calls):
        before = [t.clone() for t in call.inputs]
        try:
            found = executable.run([*call.inputs, *call.numbers])
        except Exception as e:
            e.add_note(f"seed {program.seed}, call {number}\n{program.text}")
            raise
        problem = _problem(call, found) or _changed(call, before)
        if problem is None and program.exact:
            problem = _not_eager(call, found)
        assert problem is None, f"seed {program.seed}, call {number}: {problem}\n{program.text}"
    return executable


def _problem(call: Call, found: Sequence[object]) -> str | None:
    for i, (value, known) in enumerate(zip(found, call.outputs, strict=True)):
        assert isinstance(value, torch.Tensor)
        problem = faults(value, known) or _aliasing(value, known, call)
        if problem:
            return f"output {i}: {problem}"
    return None


def _not_eager(call: Call, found: Sequence[object]) -> str | None:
    for i, (value, known) in enumerate(zip(found, call.outputs, strict=True)):
        assert isinstance(value, torch.Tensor)
        a, b = value.contiguous(), known.eager.contiguous()
        same = _bits(a) == _bits(b)
        if a.is_floating_point():
            # Float to integer of what does not fit is undefined; it has no place in a bit test.
            same |= a.isnan() & b.isnan()
        same |= known.doubt.isinf() & torch.tensor(not a.is_floating_point())
        if not bool(same.all()):
            at = tuple(int(k) for k in (~same).nonzero()[0])
            return f"output {i} at {at}: {a[at].item()!r} instead of eager {b[at].item()!r}"
    return None


def _aliasing(value: torch.Tensor, known: Known, call: Call) -> str | None:
    """What is a view of an input in eager torch has to be one, and nothing else may be."""
    if not value.numel():
        return None
    for i, given in enumerate(call.inputs):
        eager = known.eager.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
        ours = value.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
        if eager != ours:
            return f"{'no ' if eager else 'a '}view of input {i}"
        if eager and value.storage_offset() != known.eager.storage_offset():
            return f"a view of input {i} at another offset"
    return None


def _changed(call: Call, before: list[torch.Tensor]) -> str | None:
    for i, (given, old) in enumerate(zip(call.inputs, before, strict=True)):
        if not torch.equal(_bits(given), _bits(old)):
            return f"input {i} was changed"
    return None


def _bits(x: torch.Tensor) -> torch.Tensor:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(integers[x.element_size()])
