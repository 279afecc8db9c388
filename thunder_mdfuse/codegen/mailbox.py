"""Loads from the mailboxes of a team: an all-reduce that is part of the kernel that needs it.

A buffer in space ``symmetric(team)`` is a table with the address of every position's mailbox,
mapped into this device. A load of it waits until the element is there in every mailbox and gives
the sum in f32, taken in the order of the positions, so that all ranks get the same bits.

The data says itself whether it is there: -0.0 means "not yet". What is left to the runtime, which
will own the mailboxes (nothing launches such kernels yet):

* whoever fills a mailbox writes +0.0 for -0.0, in accesses of the kernel's vector or wider;
* three slots take turns, one for each launch: the table is that of slot ``epoch % 3``, and the
  kernel fills the slot of the launch before with -0.0 again, through an output of its own.
  That is safe: data of this launch in a peer's mailbox means that the peer's kernel of the launch
  before has ended, for its stream is in order, and so has read that slot;
* all slots hold -0.0 and all ranks have passed a barrier before the first launch; the epoch counts
  launches, and a captured graph has to hold a multiple of three of them;
* every rank launches the same kernels in the same order, and has loaded all of them before
  (``compile/module.py``), because a kernel that spins keeps others from being loaded.
"""

from thunder_mdfuse.codegen.exprs import CPP_TYPES
from thunder_mdfuse.codegen.statements import Block
from thunder_mdfuse.errors import CodegenError
from thunder_mdfuse.schedule.plan import Buffer, Load

MARKED = ("f16", "bf16", "f32")
ACCESSES = (4, 8, 16)


def is_mailbox(buffer: Buffer) -> bool:
    """Whether the buffer is the table of a team's mailboxes."""
    return buffer.space.startswith("symmetric(")


def check(buffer: Buffer, loads: list[Load], vector: int) -> None:
    """Raise ``CodegenError`` for a mailbox that no device function reads by ``loads``."""
    nbytes = vector * buffer.dtype.itemsize
    if buffer.written:
        raise CodegenError(
            f"the mailboxes of {buffer.value} are read by kernels and filled by the runtime; plan "
            "what the kernel writes as a buffer in global memory"
        )
    if buffer.dtype.text not in MARKED or nbytes not in ACCESSES:
        raise CodegenError(
            f"the mailbox of {buffer.value} is read {vector} elements of {buffer.dtype} at a time; "
            f"needed are {', '.join(MARKED)} in accesses of 4, 8 or 16 bytes"
        )
    if any(load.access != "vector" for load in loads):
        raise CodegenError(f"the mailbox of {buffer.value} has to be read in whole vectors")


def gather(block: Block, buffer: str, of: Buffer, count: str, vector: int, offset: str) -> str:
    """Statements that sum ``vector`` elements at ``offset`` over ``count`` mailboxes; the sum."""
    cpp = CPP_TYPES[of.dtype]
    total = f"s{buffer}"
    block.add(f"mdf::Vec<float, {vector}> {total}{{}};")
    team = block.open(f"for (mdf::i32 q = 0; q < {count}; ++q)")
    address = f"mdf::load1({buffer}, q)"
    team.add(f"const {cpp}* box = reinterpret_cast<const {cpp}*>({address});")
    team.add(f"mdf::Vec<float, {vector}> part;")
    spin = team.open("for (bool missing = true; missing;)")
    spin.add(f"part = mdf::to_compute(mdf::load_relaxed_sys<{vector}>(box, {offset}));")
    spin.add("missing = false;")
    lanes = spin.open(f"for (mdf::i32 j = 0; j < {vector}; ++j)", "#pragma unroll")
    lanes.add("missing = missing || (part.v[j] == 0.0f && mdf::signbit(part.v[j]));")
    lanes = team.open(f"for (mdf::i32 j = 0; j < {vector}; ++j)", "#pragma unroll")
    lanes.add(f"{total}.v[j] = mdf::add({total}.v[j], part.v[j]);")
    return total
