"""Sizes: integers or integer expressions over named symbols, in one canonical form.

A size is an ``int`` or an ``Expr``: a polynomial with integer coefficients over *atoms*, where an
atom is a symbol or ``floordiv``, ``ceildiv``, ``mod``, ``min``, ``max`` of sizes. Equal expressions
have equal structure, so ``==`` and ``hash`` are those of the structure. The same form serves tensor
shapes, guards and the index arithmetic of kernels. Symbols stand for non-negative integers.

Simplification is by exact division and by bounds: ``(a*N + b) // N`` is ``a`` once ``0 <= b < N``
is known from ``ranges`` (symbol -> extent, meaning ``0 <= symbol < extent``).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from thunder_mdfuse.errors import IRError


@dataclass(frozen=True)
class Sym:
    """A named non-negative integer. ``@name`` is a position along a mesh axis or team."""

    name: str

    @property
    def key(self) -> str:
        return self.name


@dataclass(frozen=True)
class Fn:
    """``floordiv``, ``ceildiv``, ``mod``, ``min`` or ``max`` of two sizes."""

    op: str
    args: tuple["Size", "Size"]
    key: str


Atom = Sym | Fn
Monomial = tuple[Atom, ...]


class Expr:
    """A polynomial that is not a plain integer. Build with ``symbol`` and operators, never
    directly.
    """

    __slots__ = ("_hash", "_text", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._text: str | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms

    def __add__(self, other: "Size") -> "Size":
        return add(self, other)

    def __radd__(self, other: int) -> "Size":
        return add(other, self)

    def __sub__(self, other: "Size") -> "Size":
        return add(self, multiply(-1, other))

    def __rsub__(self, other: int) -> "Size":
        return add(other, multiply(-1, self))

    def __mul__(self, other: "Size") -> "Size":
        return multiply(self, other)

    def __rmul__(self, other: int) -> "Size":
        return multiply(other, self)

    def __neg__(self) -> "Size":
        return multiply(-1, self)

    def __floordiv__(self, other: "Size") -> "Size":
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> "Size":
        return floordiv(other, self)

    def __mod__(self, other: "Size") -> "Size":
        return mod(self, other)

    def __rmod__(self, other: int) -> "Size":
        return mod(other, self)

    def __bool__(self) -> bool:
        raise IRError(
            f"the truth of the symbolic size {self} was asked; compare with a guard instead"
        )

    def __str__(self) -> str:
        if self._text is None:
            self._text = _print(self)
        return self._text

    __repr__ = __str__


Size = int | Expr
Ranges = Mapping[str, Size]
NO_RANGES: Ranges = {}


@lru_cache(maxsize=65536)
def symbol(name: str) -> Expr:
    """The symbol ``name`` as a size."""
    return Expr((((Sym(name),), 1),))


def product(sizes: Iterable[Size]) -> Size:
    """The product of ``sizes``; 1 for none."""
    result: Size = 1
    for size in sizes:
        result = multiply(result, size)
    return result


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(size, Expr):
        return size.terms
    return (((), int(size)),) if size else ()


def _make(terms: dict[Monomial, int]) -> Size:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Expr(tuple(sorted(kept.items(), key=_monomial_key)))


def _monomial_key(term: tuple[Monomial, int]) -> tuple[int, tuple[str, ...]]:
    return -len(term[0]), tuple(a.key for a in term[0])


def _join(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted(a + b, key=lambda atom: atom.key))


def add(a: Size, b: Size) -> Size:
    """``a + b``, with ``d*(x // d) + x % d`` joined to ``x``."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    terms = dict(_terms(a))
    for monomial, c in _terms(b):
        terms[monomial] = terms.get(monomial, 0) + c
    return _rejoin(terms)


def _rejoin(terms: dict[Monomial, int]) -> Size:
    for monomial, c in terms.items():
        if not c:
            continue
        for i, atom in enumerate(monomial):
            if not (isinstance(atom, Fn) and atom.op == "mod"):
                continue
            value, divisor = atom.args
            if len(_terms(divisor)) != 1:
                continue
            (factors, k) = _terms(divisor)[0]
            quotient = Fn("floordiv", (value, divisor), _fn_key("floordiv", value, divisor))
            rest = monomial[:i] + monomial[i + 1 :]
            partner = _join(rest, (quotient, *factors))
            if terms.get(partner) == c * k:
                left = {m: v for m, v in terms.items() if m not in (monomial, partner)}
                return add(_make(left), multiply(Expr(((rest, c),)) if rest else c, value))
    return _make(terms)


def multiply(a: Size, b: Size) -> Size:
    """``a * b``, expanded."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1:
        return b
    if b == 1:
        return a
    terms: dict[Monomial, int] = {}
    for ma, ca in _terms(a):
        for mb, cb in _terms(b):
            monomial = _join(ma, mb) if ma and mb else ma or mb
            terms[monomial] = terms.get(monomial, 0) + ca * cb
    return _make(terms)


def _fn_key(op: str, a: Size, b: Size) -> str:
    return f"{op}({a}, {b})"


def _fn(op: str, a: Size, b: Size) -> Expr:
    return Expr((((Fn(op, (a, b), _fn_key(op, a, b)),), 1),))


def _divide_term(term: tuple[Monomial, int], divisor: tuple[Monomial, int]) -> Size | None:
    (monomial, c), (factors, k) = term, divisor
    if c % k:
        return None
    rest = list(monomial)
    for atom in factors:
        if atom not in rest:
            return None
        rest.remove(atom)
    return _make({tuple(rest): c // k})


def exact_quotient(a: Size, b: Size) -> Size | None:
    """``a / b`` when ``b`` is one term that divides every term of ``a``, else None."""
    whole, rest = split_multiple(a, b)
    return whole if rest == 0 else None


def split_multiple(a: Size, b: Size) -> tuple[Size, Size]:
    """``(q, r)`` with ``a == q*b + r``, where ``q*b`` are the terms of ``a`` that ``b`` divides."""
    divisor = _terms(b)
    if a == b:
        return 1, 0
    if len(divisor) != 1:
        return 0, a
    quotient: Size = 0
    rest: dict[Monomial, int] = {}
    for term in _terms(a):
        part = _divide_term(term, divisor[0])
        if part is None and not term[0] and not divisor[0][0]:
            # A constant splits into its multiple of a constant divisor and what is left over.
            quotient = add(quotient, term[1] // divisor[0][1])
            rest[()] = term[1] % divisor[0][1]
        elif part is None:
            rest[term[0]] = term[1]
        else:
            quotient = add(quotient, part)
    return quotient, _make(rest)


def upper_bound(size: Size, ranges: Ranges) -> Size | None:
    """An upper bound of ``size``, ranged symbols at their extent - 1, or None when none is seen."""
    total: Size = 0
    for monomial, c in _terms(size):
        if not all(_atom_nonnegative(a, ranges) for a in monomial):
            return None
        if c < 0 and any(isinstance(a, Fn) or a.name in ranges for a in monomial):
            continue  # a subtracted product of non-negative factors is at most 0
        value: Size = c
        for atom in monomial:
            bound = _atom_bound(atom, ranges)
            if bound is None:
                return None
            value = multiply(value, bound)
        total = add(total, value)
    return total


def _atom_bound(atom: Atom, ranges: Ranges) -> Size | None:
    if isinstance(atom, Sym):
        return add(ranges[atom.name], -1) if atom.name in ranges else symbol(atom.name)
    a, b = atom.args
    if atom.op == "mod":
        return add(b, -1)
    if atom.op == "min":
        return b if isinstance(b, int) else upper_bound(a, ranges)
    if atom.op == "floordiv":
        bound = upper_bound(a, ranges)
        return None if bound is None else floordiv(bound, b)
    return None


def nonnegative(size: Size, ranges: Ranges = NO_RANGES) -> bool:
    """Whether ``size >= 0`` is certain; where ``ranges`` are given, the other symbols are >= 1."""
    if isinstance(size, int):
        return size >= 0
    return _nonnegative(size, ranges) if ranges else _always_nonnegative(size)


@lru_cache(maxsize=65536)
def _always_nonnegative(size: Expr) -> bool:
    return _nonnegative(size, NO_RANGES)


def _nonnegative(size: Expr, ranges: Ranges) -> bool:
    if not all(_atom_nonnegative(a, ranges) for m, _ in size.terms for a in m):
        return False
    if all(c > 0 for _, c in size.terms):
        return True
    # In a kernel extents are at least 1: put 1 + t for each unranged symbol, t being >= 0.
    free = {a.name for m, _ in size.terms for a in m if isinstance(a, Sym) and a.name not in ranges}
    free = {name for name in free if not name.startswith("@")}
    if not ranges or not free or any(isinstance(a, Fn) for m, _ in size.terms for a in m):
        return False
    shifted = substitute(size, {name: add(symbol(name), 1) for name in free})
    return shifted >= 0 if isinstance(shifted, int) else all(c > 0 for _, c in shifted.terms)


def _atom_nonnegative(atom: Atom, ranges: Ranges) -> bool:
    if isinstance(atom, Sym) or atom.op == "mod":
        return True
    a, b = (nonnegative(x, ranges) for x in atom.args)
    return (a or b) if atom.op == "max" else (a and b) if atom.op == "min" else a


def less(a: Size, b: Size, ranges: Ranges = NO_RANGES) -> bool:
    """Whether ``a < b`` is certain."""
    bound = upper_bound(a, ranges)
    return bound is not None and nonnegative(add(add(b, -1), multiply(-1, bound)), ranges)


def _common_factor(a: Size, b: Size, ranges: Ranges) -> tuple[Size, Size, Size, Size] | None:
    """``(g, q, b/g, r)`` with ``a == g*q + r``, ``0 <= r < g``, for a ``g`` > 1 that divides b."""
    for monomial, c in _terms(a):
        if c < 0 or not (monomial or c > 1):
            continue
        ranged = tuple(x for x in monomial if not (isinstance(x, Sym) and x.name in ranges))
        factor = _make({ranged: c})
        divisor = exact_quotient(b, factor)
        if factor == 1 or divisor is None or divisor == 1:
            continue
        scaled, left = split_multiple(a, factor)
        if nonnegative(left, ranges) and less(left, factor, ranges):
            return factor, scaled, divisor, left
    return None


def floordiv(a: Size, b: Size, ranges: Ranges = NO_RANGES) -> Size:
    """``a // b``, rounded down; 0 for ``b`` = 0, the extent of a dim that has no index."""
    if b == 1 or a == 0 or b == 0:
        return a if b != 0 else 0
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    whole, rest = split_multiple(a, b)
    if rest == 0 or (nonnegative(rest, ranges) and less(rest, b, ranges)):
        return whole
    finer = _common_factor(rest, b, ranges)
    if finer is not None:
        _, scaled, divisor, _ = finer
        return add(whole, floordiv(scaled, divisor, ranges))
    if isinstance(rest, Expr) and len(rest.terms) == 1 and rest.terms[0][1] == 1:
        (atom, *others) = rest.terms[0][0]
        if not others and isinstance(atom, Fn) and atom.op == "floordiv":
            inner, divisor = atom.args
            return add(whole, floordiv(inner, multiply(divisor, b), ranges))
    return add(whole, _fn("floordiv", rest, b))


def mod(a: Size, b: Size, ranges: Ranges = NO_RANGES) -> Size:
    """``a % b``, with the sign of ``b``; 0 for ``b`` = 0."""
    if b == 1 or b == 0:
        return 0
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    _, rest = split_multiple(a, b)
    if rest == 0 or (nonnegative(rest, ranges) and less(rest, b, ranges)):
        return rest
    finer = _common_factor(rest, b, ranges)
    if finer is not None:
        factor, scaled, divisor, left = finer
        return add(multiply(factor, mod(scaled, divisor, ranges)), left)
    return rest % b if isinstance(rest, int) and isinstance(b, int) else _fn("mod", rest, b)


def ceildiv(a: Size, b: Size) -> Size:
    """``a / b`` rounded up, for ``b`` > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    quotient = exact_quotient(a, b)
    return quotient if quotient is not None else _fn("ceildiv", a, b)


def minimum(a: Size, b: Size) -> Size:
    """The smaller of two sizes."""
    return _extreme("min", a, b)


def maximum(a: Size, b: Size) -> Size:
    """The larger of two sizes."""
    return _extreme("max", a, b)


def _extreme(op: str, a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b) if op == "min" else max(a, b)
    low, high = (a, b) if op == "min" else (b, a)
    if nonnegative(add(b, multiply(-1, a))):
        return low
    if nonnegative(add(a, multiply(-1, b))):
        return high
    first, second = sorted((a, b), key=lambda s: (isinstance(s, int), str(s)))
    return _fn(op, first, second)


_FUNCTIONS: dict[str, Callable[[Size, Size], Size]] = {
    "floordiv": floordiv,
    "ceildiv": ceildiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
}


def rebuild(size: Size, leaf: Callable[[str], Size], ranges: Ranges = NO_RANGES) -> Size:
    """``size`` with ``leaf(name)`` in place of each symbol, simplified again under ``ranges``."""
    if isinstance(size, int):
        return size
    total: Size = 0
    for monomial, c in size.terms:
        value: Size = c
        for atom in monomial:
            if isinstance(atom, Sym):
                part = leaf(atom.name)
            else:
                a, b = (rebuild(x, leaf, ranges) for x in atom.args)
                if atom.op in ("floordiv", "mod"):
                    part = (floordiv if atom.op == "floordiv" else mod)(a, b, ranges)
                else:
                    part = _FUNCTIONS[atom.op](a, b)
            value = multiply(value, part)
        total = add(total, value)
    return total


def substitute(size: Size, values: Mapping[str, Size], ranges: Ranges = NO_RANGES) -> Size:
    """``size`` with the symbols in ``values`` replaced."""
    return rebuild(size, lambda name: values[name] if name in values else symbol(name), ranges)


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """The integer that ``size`` is when each symbol has its value. Raises ``IRError`` for a missing
    one.
    """
    if isinstance(size, int):
        return size
    try:
        return _evaluate(size, values, {})
    except KeyError:
        missing = ", ".join(sorted(symbols(size) - values.keys()))
        raise IRError(f"size {size} needs values for {missing}") from None


def _evaluate(size: Size, values: Mapping[str, int], known: dict[str, int]) -> int:
    """``known``: the functions evaluated so far, since uneven cuts of cuts repeat theirs."""
    if isinstance(size, int):
        return size
    total = 0
    for monomial, c in size.terms:
        for atom in monomial:
            value = values[atom.name] if isinstance(atom, Sym) else known.get(atom.key)
            if value is None:
                assert isinstance(atom, Fn)
                a, b = (_evaluate(x, values, known) for x in atom.args)
                found = _FUNCTIONS[atom.op](a, b)
                assert isinstance(found, int)
                value = known[atom.key] = found
            c *= value
        total += c
    return total


def symbols(size: Size) -> set[str]:
    """The names of all symbols in ``size``."""
    if isinstance(size, int):
        return set()
    names: set[str] = set()
    for monomial, _ in size.terms:
        for atom in monomial:
            if isinstance(atom, Sym):
                names.add(atom.name)
            else:
                names |= symbols(atom.args[0]) | symbols(atom.args[1])
    return names


def coefficient(size: Size, name: str) -> tuple[Size, Size] | None:
    """``(k, rest)`` with ``size == k*name + rest`` and ``name`` in neither; None when not linear in
    it.
    """
    if isinstance(size, int):
        return 0, size
    factor: Size = 0
    rest: dict[Monomial, int] = {}
    for monomial, c in size.terms:
        hits = [a for a in monomial if isinstance(a, Sym) and a.name == name]
        inside = any(isinstance(a, Fn) and name in symbols(_as_size(a)) for a in monomial)
        if inside or len(hits) > 1:
            return None
        if hits:
            others = tuple(a for a in monomial if a is not hits[0])
            factor = add(factor, _make({others: c}))
        else:
            rest[monomial] = c
    return factor, _make(rest)


def _as_size(atom: Atom) -> Size:
    return Expr((((atom,), 1),))


def _print(expr: Expr) -> str:
    parts: list[str] = []
    for monomial, c in expr.terms:
        names = "*".join(a.key for a in monomial)
        magnitude = abs(c)
        body = (
            names
            if names and magnitude == 1
            else f"{magnitude}*{names}"
            if names
            else str(magnitude)
        )
        sign = "-" if c < 0 else "+"
        parts.append(f" {sign} {body}" if parts else f"{'-' if c < 0 else ''}{body}")
    return "".join(parts)


_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_@][\w@.]*)|(\*|\+|-|\(|\)|,))")


def parse(text: str) -> Size:
    """The size that ``text`` writes, as ``str`` prints it. Raises ``IRError`` if malformed."""
    tokens: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if not match:
            raise IRError(f"cannot read the size {text!r} at {text[position:]!r}")
        tokens.append(match.group(0).strip())
        position = match.end()
    size, rest = _parse_sum(tokens, text)
    if rest:
        raise IRError(f"cannot read the size {text!r}: {rest[0]!r} is left over")
    return size


def _parse_sum(tokens: list[str], text: str) -> tuple[Size, list[str]]:
    sign = 1
    if tokens and tokens[0] == "-":
        sign, tokens = -1, tokens[1:]
    total, tokens = _parse_product(tokens, text)
    total = multiply(sign, total)
    while tokens and tokens[0] in "+-":
        sign = 1 if tokens[0] == "+" else -1
        part, tokens = _parse_product(tokens[1:], text)
        total = add(total, multiply(sign, part))
    return total, tokens


def _parse_product(tokens: list[str], text: str) -> tuple[Size, list[str]]:
    value, tokens = _parse_factor(tokens, text)
    while tokens and tokens[0] == "*":
        part, tokens = _parse_factor(tokens[1:], text)
        value = multiply(value, part)
    return value, tokens


def _parse_factor(tokens: list[str], text: str) -> tuple[Size, list[str]]:
    if not tokens:
        raise IRError(f"cannot read the size {text!r}: it ends too early")
    head, rest = tokens[0], tokens[1:]
    if head.isdigit():
        return int(head), rest
    if head in _FUNCTIONS and rest[:1] == ["("]:
        a, rest = _parse_sum(rest[1:], text)
        if rest[:1] != [","]:
            raise IRError(f"cannot read the size {text!r}: {head} needs two arguments")
        b, rest = _parse_sum(rest[1:], text)
        if rest[:1] != [")"]:
            raise IRError(f"cannot read the size {text!r}: {head} is not closed")
        return _FUNCTIONS[head](a, b), rest[1:]
    if head == "(":
        value, rest = _parse_sum(rest, text)
        if rest[:1] != [")"]:
            raise IRError(f"cannot read the size {text!r}: a parenthesis is not closed")
        return value, rest[1:]
    if re.fullmatch(r"[A-Za-z_@][\w@.]*", head):
        return symbol(head), rest
    raise IRError(f"cannot read the size {text!r} at {head!r}")
