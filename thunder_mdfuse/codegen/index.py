"""Sizes as C++: the domain's symbols stay, everything else becomes a kernel argument, once."""

from collections.abc import Iterable, Mapping

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.sizes import Expr, Fn, Monomial, Size, Sym


class Arguments:
    """The size arguments of a kernel: ``name(size)`` gives the parameter that holds ``size``, and
    ``inverse(size)`` the one that holds its reciprocal, for divisions of 32-bit numbers.
    """

    def __init__(self, wide: bool = False) -> None:
        self.wide = wide
        self.sizes: dict[Size, str] = {}
        self.divisors: dict[Size, str] = {}

    def inverse(self, size: Size) -> str:
        """The u64 parameter ``reciprocal(size)``."""
        return self.divisors.setdefault(size, f"q{len(self.divisors)}")

    def name(self, size: Size) -> str:
        """C++ for ``size``, which has no domain symbols: a small literal or a parameter."""
        if isinstance(size, int) and -1 <= size <= 1:
            return str(size)
        return self.sizes.setdefault(size, f"p{len(self.sizes)}")


def reciprocal(divisor: int) -> int:
    """2^63 / ``divisor``, rounded up: ``mdf::quotient`` multiplies by it instead of dividing.

    Source: Lemire, Kaser, Kurz: Faster remainder by direct computation, 2019.
    """
    return -(-(1 << 63) // max(divisor, 1))


class IndexPrinter:
    """Prints expressions over the domain's symbols. ``names`` maps those to C++ expressions."""

    def __init__(self, arguments: Arguments, names: Mapping[str, str]) -> None:
        self.arguments, self.names = arguments, names

    def __call__(self, size: Size) -> str:
        """C++ for ``size``."""
        if not self._moves(size):
            return self.arguments.name(size)
        assert isinstance(size, Expr)
        by_moving: dict[Monomial, Size] = {}
        for monomial, c in size.terms:
            moving = tuple(a for a in monomial if self._moves(_single(a)))
            still = tuple(a for a in monomial if a not in moving)
            factor = sizes.multiply(c, Expr(((still, 1),)) if still else 1)
            by_moving[moving] = sizes.add(by_moving.get(moving, 0), factor)
        parts = [self._term(m, k) for m, k in by_moving.items() if m]
        rest = by_moving.get((), 0)
        if rest != 0:
            parts.append(self.arguments.name(rest))
        return " + ".join(parts)

    def definitions(self, index: str, pairs: Iterable[tuple[str, Size]]) -> list[str]:
        """Statements that define each name of ``pairs``, in C++ type ``index``, for the next."""
        found = []
        for name, value in pairs:
            found.append(f"const {index} {name} = {self(value)};")
            self.names = {**self.names, name: name}
        return found

    def _moves(self, size: Size) -> bool:
        return bool(sizes.symbols(size) & self.names.keys())

    def _term(self, moving: Monomial, factor: Size) -> str:
        body = " * ".join(self._atom(a) for a in moving)
        if factor == 1:
            return body
        return f"{body} * {self._wrapped(self.arguments.name(factor))}"

    def _wrapped(self, text: str) -> str:
        return f"({text})" if text.startswith("-") else text

    def _atom(self, atom: Sym | Fn) -> str:
        if isinstance(atom, Sym):
            return self.names[atom.name]
        a, b = self(atom.args[0]), self(atom.args[1])
        if atom.op == "ceildiv":
            a = f"({a}) + ({b}) - 1"
        if atom.op in ("floordiv", "mod", "ceildiv"):
            # C++ divides toward zero; a place counted from an end can be below it.
            plain = sizes.nonnegative(atom.args[0])
            divisor = atom.args[1]
            if plain and not self.arguments.wide and not self._moves(divisor):
                inverse = self.arguments.inverse(divisor)
                if atom.op == "mod":
                    return f"mdf::rest({a}, {b}, {inverse})"
                return f"mdf::quotient({a}, {inverse})"
            if atom.op == "mod":
                return f"(({a}) % ({b}))" if plain else f"mdf::remainder({a}, {b})"
            return f"(({a}) / ({b}))" if plain else f"mdf::div_floor({a}, {b})"
        return f"mdf::{'minimum' if atom.op == 'min' else 'maximum'}({a}, {b})"


def _single(atom: Sym | Fn) -> Size:
    return Expr((((atom,), 1),))
