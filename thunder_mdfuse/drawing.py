"""Programs as pictures: a fusion's values from top to bottom, coloured by the step that makes them.

``draw(explain(fused).regions[0].plan)`` draws what a jitted function's region became. In: a
``ProgramPlan``, or a ``Fusion`` of any stage. Out: a matplotlib figure, with ``savefig``. Needs the
packages of the extra ``notebooks``; everything else works without this module.
"""

import itertools
import math
from collections.abc import Iterable, Mapping

try:
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
except ImportError as e:
    raise ImportError(
        f"thunder_mdfuse.drawing needs matplotlib and networkx ({e}): "
        "pip install 'thunder_mdfuse[notebooks]', or '.[notebooks]' in a clone"
    ) from e

from thunder_mdfuse.errors import MdfuseError
from thunder_mdfuse.ir.graph import Fusion, Node
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.schedule.plan import KernelPlan
from thunder_mdfuse.schedule.program import ProgramPlan

# Inches for one value. Labels are two or three lines of small type.
WIDTH, HEIGHT = 2.4, 0.52
FONT_SIZE = 7.5
HEAD = 0.7  # for title and legend

# Light enough for black text; told apart by readers with any colour vision (Okabe and Ito's hues).
INPUT = "#e6e6e6"
COLLECTIVE = "#f5b8a0"
ATEN = "#f7e8a4"
UNPLANNED = "#ffffff"
EDGE = "#666666"
KERNELS = ("#bfe0f5", "#bfe8d5", "#e3cdea", "#f9d9b0")


def steps_by_node(plan: ProgramPlan) -> dict[int, str]:
    """For each node of the planned fusion the steps that compute it: ``kernel 0``, ``aten``,
    ``collective``. A node that several kernels compute, each for itself, names them all.
    """
    found: dict[int, list[str]] = {}
    kernels = 0
    for step in plan.steps:
        if step.kernel is not None:
            for node in _computed(plan.fusion, step.kernel):
                found.setdefault(node, []).append(str(kernels))
            kernels += 1
    labels = {node: f"kernel {' and '.join(of)}" for node, of in found.items()}
    for step in plan.steps:
        if step.kernel is None:
            labels[step.node] = "aten" if step.kind == "aten" else "collective"
    return labels


def _computed(fusion: Fusion, kernel: KernelPlan) -> set[int]:
    """The nodes between what a kernel reads and what it writes."""
    read = {b.value.node for b in kernel.buffers if not b.written}
    stack = [b.value.node for b in kernel.buffers if b.written]
    found: set[int] = set()
    while stack:
        node = stack.pop()
        if node in found or node in read or not is_drawn(fusion.nodes[node]):
            continue
        found.add(node)
        stack += [use.node for use in fusion.nodes[node].args]
    return found - set(fusion.inputs)


def is_drawn(node: Node) -> bool:
    """Numbers that are part of the program's text are written into their readers' labels."""
    return node.op not in ("const", "size")


def draw(what: Fusion | ProgramPlan, plan: ProgramPlan | None = None, title: str = "") -> Figure:
    """A picture of a program: of a plan, or of a fusion and its ``plan``, coloured by steps.

    Raises ``MdfuseError`` for a plan of another fusion, and for what is neither fusion nor plan.
    """
    if not isinstance(what, Fusion | ProgramPlan):
        raise MdfuseError(
            f"needed a plan or a fusion to draw, found {type(what).__name__}: "
            "draw(explain(fused).regions[0].plan)"
        )
    if isinstance(what, ProgramPlan):
        fusion, plan = what.fusion, plan or what
    else:
        fusion = what
    if plan is not None and plan.fusion != fusion:
        raise MdfuseError("the plan was made for another fusion: draw the plan alone")
    steps = {} if plan is None else steps_by_node(plan)
    graph = graph_of(fusion)
    places = layered(graph)
    columns = 1 + max((x for x, _ in places.values()), default=0.0)
    rows = 1 - min((y for _, y in places.values()), default=0.0)
    height = HEIGHT * rows + HEAD
    figure = Figure(figsize=(max(4.5, WIDTH * (columns + 0.2)), height))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1 - HEAD / height))
    axes.set_axis_off()
    axes.set_xlim(-0.6, columns - 0.2)
    axes.set_ylim(-rows + 0.4, 0.6)
    _draw_edges(axes, graph, places)
    by_node = {n: "input" if fusion.nodes[n].op == "input" else steps.get(n, "") for n in places}
    colours = _colours(by_node.values())
    for node, place in places.items():
        colour = colours[by_node[node]]
        box = {"boxstyle": "round,pad=0.3", "facecolor": colour, "edgecolor": EDGE}
        axes.text(
            *place, label(fusion, node), ha="center", va="center", fontsize=FONT_SIZE, bbox=box
        )
    if title:
        figure.suptitle(title, fontsize=FONT_SIZE + 2, y=1 - 0.12 / height)
    if steps:
        handles = [Patch(facecolor=c, edgecolor=EDGE, label=s) for s, c in colours.items() if s]
        figure.legend(
            handles=handles,
            loc="upper center",
            bbox_to_anchor=(0.5, 1 - 0.3 / height),
            ncols=len(handles),
            fontsize=FONT_SIZE,
            frameon=False,
        )
    return figure


def graph_of(fusion: Fusion) -> "nx.DiGraph[int]":
    """Nodes of the fusion by number, an edge from each value to what reads it."""
    graph = nx.DiGraph()
    for number, node in enumerate(fusion.nodes):
        if not is_drawn(node):
            continue
        graph.add_node(number)
        for use in node.args:
            if is_drawn(fusion.nodes[use.node]):
                graph.add_edge(use.node, number)
    return graph


def layered(graph: "nx.DiGraph[int]") -> dict[int, tuple[float, float]]:
    """A place for each node: below everything it reads, under what it reads first.

    A value stands as low as its readers allow, so that edges are short.
    """
    depth: dict[int, int] = {}
    order = list(nx.topological_sort(graph))
    for node in order:
        depth[node] = 1 + max((depth[p] for p in graph.predecessors(node)), default=-1)
    for node in reversed(order):
        depth[node] = min((depth[s] - 1 for s in graph.successors(node)), default=depth[node])
    layers: dict[int, list[int]] = {}
    for node in sorted(graph):
        layers.setdefault(depth[node], []).append(node)
    places: dict[int, tuple[float, float]] = {}
    for level in sorted(layers):
        wanted = {node: _under(graph, node, places) for node in layers[level]}
        x = -1.0
        for node in sorted(wanted, key=lambda n: (wanted[n], n)):
            x = x + 1 if wanted[node] == math.inf else max(wanted[node], x + 1)
            places[node] = (x, -float(level))
    return places


def _under(graph: "nx.DiGraph[int]", node: int, places: Mapping[int, tuple[float, float]]) -> float:
    """The column of the nearest value that the node reads; none, for the right end: infinity."""
    above = [places[p] for p in graph.predecessors(node)]
    return min(above, key=lambda place: (place[1], place[0]))[0] if above else math.inf


def _draw_edges(
    axes: Axes, graph: "nx.DiGraph[int]", places: Mapping[int, tuple[float, float]]
) -> None:
    for source, target in graph.edges:
        (x0, y0), (x1, y1) = places[source], places[target]
        inches = math.hypot((x1 - x0) * WIDTH, (y1 - y0) * HEIGHT)
        # A long edge bends half a column to the right, around the values between its ends.
        bend = f"arc3,rad={-WIDTH / inches:.3f}" if y0 - y1 > 1.5 and x0 == x1 else "arc3"
        arrow = {
            "arrowstyle": "-|>",
            "color": "#888888",
            "shrinkA": 10,
            "shrinkB": 12,
            "connectionstyle": bend,
        }
        axes.annotate("", xy=places[target], xytext=places[source], arrowprops=arrow)


def label(fusion: Fusion, number: int) -> str:
    """What a box says: the node with its numbers, then its type, then its placements."""
    node = fusion.nodes[number]
    if node.op == "input":
        head = f"%{number} input"
    else:
        operands = ", ".join(
            getattr(fusion.nodes[use.node].attrs, "value", str(use)) for use in node.args
        )
        head = f"%{number} {node.op}({operands})"
    if row(node.op).kind == "start":
        head += f" over {getattr(node.attrs, 'team', '')}"
    types = " | ".join(str(t) for t in node.types)
    return "\n".join([head, *types.split(" @ ")])


def _colours(steps: Iterable[str]) -> dict[str, str]:
    """A colour for each step, in the order in which they come; kernels take turns."""
    fixed = {"input": INPUT, "collective": COLLECTIVE, "aten": ATEN, "": UNPLANNED}
    found: dict[str, str] = {}
    kernels = itertools.cycle(KERNELS)
    for step in steps:
        if step not in found:
            found[step] = fixed[step] if step in fixed else next(kernels)
    return found
