"""Explanations of why steps would run: the facts that changed, and where first."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.cache.location import cache_directory
from epbuild.cache.records import ActionRecords
from epbuild.cache.state import Memory
from epbuild.cache.workspace import Workspace
from epbuild.core.errors import PlanError, Problem
from epbuild.engine.events import Progress
from epbuild.plan.key import Change, changes
from epbuild.plan.result import action_records
from epbuild.plan.selection import Places, matching
from epbuild.plan.steps import Action, Step
from epbuild.session.planning import workspace_of
from epbuild.session.request import Request
from epbuild.session.session import open_session
from epbuild.survey.action_status import ActionStatus, StepState
from epbuild.survey.status import Survey


class Explanation(Struct, frozen=True):
    """Where a step stands and why. `built` is when it was last done here, in Unix seconds; None with `previous_key`: never.

    `reasons` are the survey's, in words; `changes` the facts behind them, where the reason is that its key has changed; `causes` explain
    the actions whose results have to come first, or have become others.
    """

    step: Step
    state: StepState
    key: str | None
    previous_key: str | None
    built: float | None
    reasons: tuple[str, ...]
    changes: tuple[Change, ...]
    causes: tuple[Explanation, ...] = ()
    remote: bool = False
    """Whether its result is in the remote cache, and not here."""


def explain(request: Request, steps: Sequence[str], progress: Progress | None = None) -> list[Explanation]:
    """An explanation of every step of the recipe whose id matches one of the globs `steps`, in the plan's order.

    The whole recipe is looked at, as `plan` does: what a step is needed for decides whether it has to run. Raises PlanError (EPB240)
    when a glob matches nothing, and what `survey` raises.
    """
    with open_session(request, progress) as session:
        found = session.survey()
    wanted = _matching(found, steps, request.places)
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        explainer = _Explainer(found, workspace.memory(found.configuration), action_records(cache_directory()))
        return [explainer.explain(step) for step in wanted]


class _Explainer(Struct, frozen=True, dict=True):
    found: Survey
    memory: Memory
    records: ActionRecords
    _known: dict[tuple[str, str | None], Explanation] = field(default_factory=dict)

    @cached_property
    def _last(self) -> dict[str, Step]:
        """The step that an action goes by."""
        return {step.action: step for step in self.found.plan.steps if step.id == step.action}

    def explain(self, step: Step, made_of: str | None = None) -> Explanation:
        """Why `step` is in its state; `made_of`, when what follows it was made of another result, is that result's key.

        The steps of one action have one explanation, which is found once.
        """
        known = self._known.get((step.action, made_of))
        if known is None:
            known = self._known[step.action, made_of] = self._explain(step, made_of)
        return replace(known, step=step)

    def _explain(self, step: Step, made_of: str | None) -> Explanation:
        status = self.found.actions[step.action]
        before = self.memory.previous(step.action)
        document: Mapping[str, Any] | None = before.key_document if before else None
        if made_of and before and before.action_key == status.key:
            # It has been made since; why it had to be follows from what it was before.
            document = (self.records.get(made_of) or {}).get("document")
        return Explanation(
            step=step,
            state=status.state,
            key=status.key,
            previous_key=before.action_key if before else None,
            built=before.finished if before else None,
            reasons=status.reasons,
            changes=tuple(changes(document, status.document)) if document and status.document else (),
            causes=tuple(self._causes(step, status)),
            remote=status.remote,
        )

    def _causes(self, step: Step, status: ActionStatus) -> Iterator[Explanation]:
        action = self.found.plan.actions[step.action]
        if status.state == "current":
            return
        used = self._used(action)
        for ident in action.needs:
            need = self.found.actions[ident]
            changed = ident in used and used[ident] != need.key
            if changed or need.state in ("out of date", "new"):
                yield self.explain(self._last[ident], used.get(ident))

    def _used(self, action: Action) -> dict[str, str]:
        """The keys of the results that an action was made of last, by action, where its document has them."""
        before = self.memory.previous(action.id)
        made = before.key_document.get("made", {}) if before else {}
        return {ident: item["key"] for ident, item in made.items()}


def _matching(found: Survey, globs: Sequence[str], places: Places) -> list[Step]:
    ids = {status.step.id: status for status in found.steps()}
    named = {glob: matching(ids, glob) for glob in globs}
    problems = [
        Problem("EPB240", f"no step matches '{glob}'", places.get(glob), _nearest(glob, list(ids)))
        for glob, names in named.items()
        if not names
    ]
    if problems:
        raise PlanError(*problems)
    wanted = {ident for names in named.values() for ident in names}
    return [step for step in found.plan.steps if step.id in wanted]


def _nearest(glob: str, ids: Sequence[str]) -> str:
    close = [f"'{ident}'" for ident in difflib.get_close_matches(glob, ids)]
    return f"Did you mean {' or '.join(close)}?" if close else "`epbuild plan` lists the steps."
