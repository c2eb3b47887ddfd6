"""Graph of a plan: its steps, or groups of steps if there are many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from epbuild.survey.action_status import StepState
from epbuild.survey.status import StepStatus

MAX_NODES = 200
"""Limit of nodes that are readable in one picture."""
MAX_EDGES = 400
"""Limit of edges. Mermaid draws at most 500 unless a page allows more."""

REMOTE = " (remote)"
WORST_FIRST: tuple[StepState, ...] = ("failed", "out of date", "new", "restorable", "current")
_MIN_NAMES = {"emit": 3}
"""Number of names in the id of an output for one group and one target: both, and the layout."""
_Key = tuple[str, ...]
_PAIRS = "group and target"
"""Grouping with boxes."""


class GraphNode(Struct, frozen=True):
    """Step, or a group of steps. A single step has its id and its reasons."""

    name: str
    """Id of the step, or the common part of the group."""
    title: str
    """Name without the part that is in the box."""
    box: str
    """Enclosing box, or an empty text."""
    states: Mapping[str, int]
    """Number of steps by `format_state`, worst state first."""
    reasons: tuple[str, ...] = ()
    grouped: bool = False

    @property
    def state(self) -> str:
        """Worst state."""
        return next(iter(self.states))

    @property
    def steps(self) -> int:
        return sum(self.states.values())


class StepGraph(Struct, frozen=True):
    """Nodes, and edges from each dependency to its dependent, by node numbers."""

    recipe: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[int, int], ...]
    states: Mapping[str, int]
    grouped_by: str | None = None
    """Criterion of groups, or None if each node is one step."""

    @property
    def steps(self) -> int:
        return sum(self.states.values())


class _Parts(Struct, frozen=True):
    """Parts of a step's id, such as `compile:decoder/phone/prefill`."""

    kind: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, ident: str) -> _Parts:
        kind, _, rest = ident.partition(":")
        return cls(kind, tuple(rest.split("/")))

    @property
    def place(self) -> tuple[str, ...]:
        """Group and target, empty for a step that serves several, such as a preparation or an output of several groups."""
        return self.names[:2] if self.kind != "prepare" and len(self.names) >= _MIN_NAMES.get(self.kind, 2) else ()

    @property
    def box(self) -> str:
        return " / ".join(self.place) if self.place else f"prepare {self.names[0]}" if self.kind == "prepare" else ""

    @property
    def title(self) -> str:
        """Kind and name without the part in the box."""
        if self.kind == "prepare":
            return "/".join(self.names[1:])
        return " ".join([self.kind, "/".join(self.names[len(self.place) :])]).strip()


_GROUPINGS: Sequence[tuple[str, Callable[[_Parts], _Key]]] = (
    (_PAIRS, lambda parts: parts.place or _outside(parts)),
    ("group", lambda parts: parts.place[:1] or _outside(parts)),
    ("target", lambda parts: parts.place[1:2] or (parts.kind,)),
    ("kind", lambda parts: (parts.kind,)),
)
"""Groupings of steps, finest first."""


def _outside(parts: _Parts) -> _Key:
    """Return the key of a step without a pair of group and target: a preparation or an output."""
    return (parts.kind, parts.names[0]) if parts.kind == "prepare" else (f"{parts.kind}:{'/'.join(parts.names)}",)


def format_state(status: StepStatus) -> str:
    """Return the state of a step, marked if its result is only in the remote cache."""
    return f"{status.state}{REMOTE if status.remote else ''}"


def build_step_graph(recipe: str, statuses: Sequence[StepStatus], most: int = MAX_NODES) -> StepGraph:
    """Return the graph of a plan. More than `most` steps are grouped, as finely as possible."""
    parts = {status.step.id: _Parts.of(status.step.id) for status in statuses}
    states = _count_states(map(format_state, statuses))
    whole = StepGraph(
        recipe,
        tuple(
            GraphNode(ident, parts[ident].title, parts[ident].box, {format_state(status): 1}, status.reasons)
            for status in statuses
            for ident in [status.step.id]
        ),
        _edges(statuses, {ident: number for number, ident in enumerate(parts)}),
        states,
    )
    if _is_readable(whole, most):
        return whole
    found = whole
    for name, key_of in _GROUPINGS:
        found = _group(recipe, statuses, {ident: key_of(of) for ident, of in parts.items()}, name, states)
        if _is_readable(found, most):
            break
    return found


def _is_readable(graph: StepGraph, most: int) -> bool:
    return len(graph.nodes) <= most and len(graph.edges) <= MAX_EDGES


def _group(
    recipe: str, statuses: Sequence[StepStatus], keys: Mapping[str, _Key], name: str, states: Mapping[str, int]
) -> StepGraph:
    members: dict[_Key, list[StepStatus]] = {}
    for status in statuses:
        members.setdefault(keys[status.step.id], []).append(status)
    nodes = []
    for key, found in members.items():
        alone = len(found) == 1
        whole = found[0].step.id if alone else " / ".join(key)
        box, title = key if name == _PAIRS and key == _Parts.of(found[0].step.id).place else ("", whole)
        reasons = found[0].reasons if alone else ()
        nodes.append(GraphNode(whole, title, box, _count_states(map(format_state, found)), reasons, grouped=True))
    places = {key: number for number, key in enumerate(members)}
    return StepGraph(recipe, tuple(nodes), _edges(statuses, {ident: places[key] for ident, key in keys.items()}), states, name)


def _edges(statuses: Sequence[StepStatus], numbers: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """Return the edges from needed steps to those that need them, without duplicates."""
    found = ((numbers[need], numbers[status.step.id]) for status in statuses for need in status.step.needs if need in numbers)
    return tuple(dict.fromkeys(edge for edge in found if edge[0] != edge[1]))


def _count_states(shown: Iterable[str]) -> dict[str, int]:
    """Count the states, worst first."""
    counts = Counter(shown)
    known = [text for state in WORST_FIRST for text in (state, f"{state}{REMOTE}")]
    return {text: counts[text] for text in known if counts[text]}
