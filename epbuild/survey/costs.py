"""Expected durations of actions: last measurements, or else estimates."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping

from epbuild.actions.types import get_action_type
from epbuild.cache.state import Memory, StepRecord
from epbuild.cache.workspace import Workspace, get_action_name
from epbuild.engine.scheduler import Cost
from epbuild.plan.measuring import ModelMeasurement
from epbuild.plan.steps import Action, Emission, SessionGroup
from epbuild.plan.verification import Verification
from epbuild.survey.status import Survey

_BYTES_PER_SECOND = 50e6  # rough throughput of QNN's compiler; only used to order the work


def get_cost_name(action: str, memory: Memory) -> str:
    """Return the name under which a workspace stores the cost of an action. Unlike the id, the name is unique among recipes."""
    return get_action_name(action, memory.configuration.recipe)


def estimate_cost(action: Action, workspace: Workspace, memory: Memory) -> Cost:
    """Return the expected cost of an action: the last measurement on any machine, or else an estimate from the size of its inputs."""
    if isinstance(action, Emission):
        return Cost(0.0, measured=True)  # emissions are cheap
    measured = workspace.measurement(get_cost_name(action.id, memory))
    if measured is not None:
        return Cost(measured.seconds, measured=True)
    seconds = _read_seconds(memory.previous(action.id))
    return Cost(seconds, measured=True) if seconds is not None else Cost(_estimate_from_size(action), measured=False)


def estimate_seconds(found: Survey, workspace: Workspace, memory: Memory) -> dict[str, float]:
    """Return the expected seconds of each action of a survey, except emissions, by id.

    Estimates from size are corrected with the most similar measured actions: the same models for another target, or else other
    models with the same EPs, or else actions of the same type.
    """
    stored = {ident: action for ident, action in found.plan.actions.items() if not isinstance(action, Emission)}
    costs = {ident: estimate_cost(action, workspace, memory) for ident, action in stored.items()}
    for ident, status in found.actions.items():
        if ident in costs and not costs[ident].measured and status.made is not None:
            costs[ident] = Cost(status.made.result.measured.seconds, measured=True)
    measured = [(stored[ident], cost.seconds) for ident, cost in costs.items() if cost.measured]
    ratios = _compute_ratios(measured)
    return {
        ident: cost.seconds
        if cost.measured
        else cost.seconds * next((ratios[like] for like in _list_similarities(stored[ident]) if like in ratios), 1.0)
        for ident, cost in costs.items()
    }


def _estimate_from_size(action: Action) -> float:
    return 1.0 + get_action_type(action).size(action) / _BYTES_PER_SECOND


def _read_seconds(record: StepRecord | None) -> float | None:
    """Return the seconds in a step record, as measured on the machine that produced the result, or None if they are unknown."""
    measured = record.result.get("measured") if record is not None else None
    seconds = measured.get("seconds") if isinstance(measured, Mapping) else None
    return float(seconds) if isinstance(seconds, int | float) else None


def _compute_ratios(measured: Iterable[tuple[Action, float]]) -> dict[Hashable, float]:
    """Return the median ratio of measured to estimated seconds for each group of similar actions."""
    found: dict[Hashable, list[float]] = {}
    for action, seconds in measured:
        for like in _list_similarities(action):
            found.setdefault(like, []).append(seconds / _estimate_from_size(action))
    return {like: _compute_median(values) for like, values in found.items()}


def _compute_median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _list_similarities(action: Action) -> Iterator[Hashable]:
    """Yield the groups of similar actions to which an action belongs, the most similar group first."""
    kind = type(action)
    if isinstance(action, SessionGroup | Verification | ModelMeasurement):
        eps = tuple(ep.entry.ep for ep in action.target.eps)
        yield kind, eps, action.group, tuple(member.name for member in action.members)
        yield kind, eps
    yield (kind,)
