"""One exception class for each stage of the compiler.

A message says what was found, what was needed and what to do. ``assert`` is for our own invariants;
everything a user can cause is one of these.
"""


class MdfuseError(Exception):
    """Base of every error that this package raises on purpose."""


class IRError(MdfuseError):
    """A program is malformed: wrong types, wrong order, an alias that cannot be."""


class ShardingError(MdfuseError):
    """Meshes or placements do not fit together, or a change of placement cannot be made."""


class ScheduleError(MdfuseError):
    """No plan can be made for a program that has passed verification."""


class CodegenError(MdfuseError):
    """A plan cannot be written as CUDA text."""


class CompileError(MdfuseError):
    """A compiler refused generated source, or no usable compiler or driver was found."""


class EmulatorError(MdfuseError):
    """The emulator found a fault in a generated kernel: a race, a stray access, a bad barrier."""


class CommError(MdfuseError):
    """Ranks disagree, a rank did not come in time, or a launcher's environment is incomplete."""


class ProgramError(MdfuseError):
    """A program was called with inputs that it cannot take."""


class DefinitionError(MdfuseError):
    """A FusionDefinition was used in a way that its contract does not allow."""


class ExecutorError(MdfuseError):
    """A Thunder trace asks for something that the executor refuses, with the reason."""
