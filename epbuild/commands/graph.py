"""The plan as a graph of nodes: its steps, or groups of them where they are many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from epbuild.survey.action_status import StepState
from epbuild.survey.status import StepStatus

MOST_NODES = 200
"""More than this nobody can read in one picture."""
MOST_EDGES = 400
"""Mermaid draws no more than 500, unless a page allows it more."""

REMOTE = " (remote)"
WORST_FIRST: tuple[StepState, ...] = ("failed", "out of date", "new", "restorable", "current")


class GraphNode(Struct, frozen=True):
    """A step, or several that are one node; of one step with its id and why it would run."""

    name: str
    """The step's id, or what the steps have in common."""
    title: str
    """The same without what its box has of it."""
    box: str
    """What encloses it; the empty text: nothing."""
    states: Mapping[str, int]
    """How many steps are in which state, the worst first; the words are those of `shown_state`."""
    reasons: tuple[str, ...] = ()
    grouped: bool = False

    @property
    def state(self) -> str:
        """The worst of its states."""
        return next(iter(self.states))

    @property
    def steps(self) -> int:
        return sum(self.states.values())


class StepGraph(Struct, frozen=True):
    """Nodes, and the edges from what is needed to what needs it, by numbers of nodes."""

    recipe: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[int, int], ...]
    states: Mapping[str, int]
    grouped_by: str | None = None
    """What the steps of a node have in common; None: each is one step."""

    @property
    def steps(self) -> int:
        return sum(self.states.values())


class _Parts(Struct, frozen=True):
    """What the id of a step has: `compile:decoder/phone/prefill`."""

    kind: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, ident: str) -> _Parts:
        kind, _, rest = ident.partition(":")
        return cls(kind, tuple(rest.split("/")))

    @property
    def place(self) -> tuple[str, ...]:
        """Group and target; nothing for what belongs to no one pair of them: a preparation, or an output that has several."""
        return self.names[:2] if self.kind != "prepare" and len(self.names) >= _LEAST_NAMES.get(self.kind, 2) else ()

    @property
    def box(self) -> str:
        return " / ".join(self.place) if self.place else f"prepare {self.names[0]}" if self.kind == "prepare" else ""

    @property
    def title(self) -> str:
        """Kind and name, as far as they are not in the box."""
        if self.kind == "prepare":
            return "/".join(self.names[1:])
        return " ".join([self.kind, "/".join(self.names[len(self.place) :])]).strip()


_LEAST_NAMES = {"emit": 3}
"""An output of one group and one target has both in its id, and its layout."""

_Key = tuple[str, ...]
_PAIRS = "group and target"
"""With it, what is of one group is in one box."""
_GROUPINGS: Sequence[tuple[str, Callable[[_Parts], _Key]]] = (
    (_PAIRS, lambda parts: parts.place or _outside(parts)),
    ("group", lambda parts: parts.place[:1] or _outside(parts)),
    ("target", lambda parts: parts.place[1:2] or (parts.kind,)),
    ("kind", lambda parts: (parts.kind,)),
)
"""How steps are grouped, the finest first."""


def _outside(parts: _Parts) -> _Key:
    """The key of what belongs to no pair of group and target: a model's preparations, or an output."""
    return (parts.kind, parts.names[0]) if parts.kind == "prepare" else (f"{parts.kind}:{'/'.join(parts.names)}",)


def shown_state(status: StepStatus) -> str:
    """The state of a step, and whether its result is in the remote cache only."""
    return f"{status.state}{REMOTE if status.remote else ''}"


def step_graph(recipe: str, statuses: Sequence[StepStatus], most: int = MOST_NODES) -> StepGraph:
    """The steps of a plan as a graph; more than `most` are grouped, as finely as so few nodes allow."""
    parts = {status.step.id: _Parts.of(status.step.id) for status in statuses}
    states = _counted(map(shown_state, statuses))
    whole = StepGraph(
        recipe,
        tuple(
            GraphNode(ident, parts[ident].title, parts[ident].box, {shown_state(status): 1}, status.reasons)
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
        found = _grouped(recipe, statuses, {ident: key_of(of) for ident, of in parts.items()}, name, states)
        if _is_readable(found, most):
            break
    return found


def _is_readable(graph: StepGraph, most: int) -> bool:
    return len(graph.nodes) <= most and len(graph.edges) <= MOST_EDGES


def _grouped(
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
        nodes.append(GraphNode(whole, title, box, _counted(map(shown_state, found)), reasons, grouped=True))
    places = {key: number for number, key in enumerate(members)}
    return StepGraph(recipe, tuple(nodes), _edges(statuses, {ident: places[key] for ident, key in keys.items()}), states, name)


def _edges(statuses: Sequence[StepStatus], numbers: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """From what is needed to what needs it, each once; what is needed and not part of it has none."""
    found = ((numbers[need], numbers[status.step.id]) for status in statuses for need in status.step.needs if need in numbers)
    return tuple(dict.fromkeys(edge for edge in found if edge[0] != edge[1]))


def _counted(shown: Iterable[str]) -> dict[str, int]:
    """How often each state is there, the worst first."""
    counts = Counter(shown)
    known = [text for state in WORST_FIRST for text in (state, f"{state}{REMOTE}")]
    return {text: counts[text] for text in known if counts[text]}
