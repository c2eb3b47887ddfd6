"""Graph of a plan, with a node for each step or for each group of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from epbuild.survey.action_status import StepState
from epbuild.survey.status import StepStatus

MAX_NODES = 200
"""Maximum number of nodes that are readable in one picture."""
MAX_EDGES = 400
"""Maximum number of edges. Mermaid draws at most 500 unless a page allows more."""

REMOTE = " (remote)"
WORST_FIRST: tuple[StepState, ...] = ("failed", "out of date", "new", "restorable", "current")
_MIN_NAMES = {"emit": 3}
"""Minimum number of names in a step's id if the step belongs to one group and one target, by kind of step; 2 by default.

The id of such an emit step has three names: the group, the target and the layout.
"""
_Key = tuple[str, ...]
_PAIRS = "group and target"
"""Name of the only grouping that draws nodes in boxes."""


class GraphNode(Struct, frozen=True):
    """Step or group of steps. A node for a single step has the step's id and reasons."""

    name: str
    """Id of the step, or the part that the ids of the grouped steps have in common."""
    title: str
    """Name without the part that the box shows."""
    box: str
    """Name of the enclosing box, or an empty string."""
    states: Mapping[str, int]
    """Number of steps in each state, as named by `format_state`, worst state first."""
    reasons: tuple[str, ...] = ()
    grouped: bool = False

    @property
    def state(self) -> str:
        """Worst state of the steps in the node."""
        return next(iter(self.states))

    @property
    def steps(self) -> int:
        return sum(self.states.values())


class StepGraph(Struct, frozen=True):
    """Nodes, and edges from each dependency to its dependent, as pairs of node numbers."""

    recipe: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[int, int], ...]
    states: Mapping[str, int]
    grouped_by: str | None = None
    """Criterion by which steps are grouped, or None if each node is one step."""

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
        """Group and target of the step. Empty for a step that serves several targets, such as a preparation."""
        return self.names[:2] if self.kind != "prepare" and len(self.names) >= _MIN_NAMES.get(self.kind, 2) else ()

    @property
    def box(self) -> str:
        return " / ".join(self.place) if self.place else f"prepare {self.names[0]}" if self.kind == "prepare" else ""

    @property
    def title(self) -> str:
        """Kind and name of the step, without the part that the box shows."""
        if self.kind == "prepare":
            return "/".join(self.names[1:])
        return " ".join([self.kind, "/".join(self.names[len(self.place) :])]).strip()


_GROUPINGS: Sequence[tuple[str, Callable[[_Parts], _Key]]] = (
    (_PAIRS, lambda parts: parts.place or _get_single_key(parts)),
    ("group", lambda parts: parts.place[:1] or _get_single_key(parts)),
    ("target", lambda parts: parts.place[1:2] or (parts.kind,)),
    ("kind", lambda parts: (parts.kind,)),
)
"""Groupings of steps, finest first."""


def _get_single_key(parts: _Parts) -> _Key:
    """Return the grouping key of a step without a group and a target: a preparation or an output."""
    return (parts.kind, parts.names[0]) if parts.kind == "prepare" else (f"{parts.kind}:{'/'.join(parts.names)}",)


def format_state(status: StepStatus) -> str:
    """Return the state of a step, with a mark if its result is only in the remote cache."""
    return f"{status.state}{REMOTE if status.remote else ''}"


def build_step_graph(recipe: str, statuses: Sequence[StepStatus], most: int = MAX_NODES) -> StepGraph:
    """Return the graph of a plan. If there are more than `most` steps, use the finest readable grouping."""
    parts = {status.step.id: _Parts.of(status.step.id) for status in statuses}
    states = _count_states(map(format_state, statuses))
    whole = StepGraph(
        recipe,
        tuple(
            GraphNode(ident, parts[ident].title, parts[ident].box, {format_state(status): 1}, status.reasons)
            for status in statuses
            for ident in [status.step.id]
        ),
        _list_edges(statuses, {ident: number for number, ident in enumerate(parts)}),
        states,
    )
    if _is_readable(whole, most):
        return whole
    found = whole
    for name, key_of in _GROUPINGS:
        found = _group_steps(recipe, statuses, {ident: key_of(of) for ident, of in parts.items()}, name, states)
        if _is_readable(found, most):
            break
    return found


def _is_readable(graph: StepGraph, most: int) -> bool:
    return len(graph.nodes) <= most and len(graph.edges) <= MAX_EDGES


def _group_steps(
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
    return StepGraph(
        recipe, tuple(nodes), _list_edges(statuses, {ident: places[key] for ident, key in keys.items()}), states, name
    )


def _list_edges(statuses: Sequence[StepStatus], numbers: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """Return the edges from dependencies to their dependents, without duplicates."""
    found = ((numbers[need], numbers[status.step.id]) for status in statuses for need in status.step.needs if need in numbers)
    return tuple(dict.fromkeys(edge for edge in found if edge[0] != edge[1]))


def _count_states(shown: Iterable[str]) -> dict[str, int]:
    """Count the states, worst first."""
    counts = Counter(shown)
    known = [text for state in WORST_FIRST for text in (state, f"{state}{REMOTE}")]
    return {text: counts[text] for text in known if counts[text]}
