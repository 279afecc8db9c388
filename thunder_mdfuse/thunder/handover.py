"""Inputs that a region may let go of while it runs.

Python keeps the arguments of a call until the call returns, so a backward pass in one region would
hold all that the forward pass saved to its end. Where a region alone reads what the trace made,
the trace is printed so that only a list holds it, and the region empties that list::

    mdFusion1_inputs = [t3, t4, w]
    t3 = t4 = None
    [t5, t6] = mdFusion1.taking(mdFusion1_inputs)
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from thunder.core import codeutils
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_mdfuse.thunder.fusion_call import FusionCall


def hand_over(bsyms: Sequence[BoundSymbol]) -> None:
    """Have the regions among ``bsyms``, a whole trace, called so that they can let go of what no
    other symbol reads. The trace's own inputs are its caller's.
    """
    reads = Counter(name for b in bsyms for name in {p.name for p in b.flat_proxy_args})
    made = {
        p.name for b in bsyms if b.sym.id is not PrimIDs.UNPACK_TRIVIAL for p in b.flat_proxy_outs
    }
    for bsym in bsyms:
        call = (bsym._call_ctx or {}).get(bsym.sym.name)
        if not isinstance(call, FusionCall) or not call.lets_go:
            continue
        places = [
            i
            for i, p in enumerate(bsym.args)
            if isinstance(p, TensorProxy) and reads[p.name] == 1 and p.name in made
        ]
        if places:
            object.__setattr__(bsym.sym, "python_printer", _Printer(places))


class _Printer:
    """Prints the call of a region that is handed the inputs at ``places``."""

    def __init__(self, places: Sequence[int]) -> None:
        self.places = tuple(places)

    def __call__(
        self, bsym: BoundSymbol, outs: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Iterable[str]:
        names = [codeutils.prettyprint(arg) for arg in args]
        given, region = f"{bsym.sym.name}_inputs", bsym.name_with_module()
        left = codeutils.prettyprint(outs, literals_as_underscores=True)
        yield f"{given} = [{', '.join(names)}]"
        yield f"{' = '.join(names[i] for i in self.places)} = None"
        yield f"{left} = {region}.taking({given})"
