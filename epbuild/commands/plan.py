"""`epbuild plan` and `epbuild explain`: states of steps, with reasons."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.cache.location import find_cache_directory
from epbuild.cache.records import ActionRecords
from epbuild.cache.state import Memory
from epbuild.cache.workspace import Workspace
from epbuild.core.errors import PlanError, Problem
from epbuild.engine.events import Progress
from epbuild.plan.key import Change, compare_documents
from epbuild.plan.result import open_action_records
from epbuild.plan.selection import Places, match_ids
from epbuild.plan.steps import Action, Step
from epbuild.session.planning import get_workspace_folder
from epbuild.session.request import Request
from epbuild.session.session import open_session
from epbuild.session.snapshot import read_last, read_survey
from epbuild.survey.action_status import ActionStatus, StepState
from epbuild.survey.status import Survey


def survey(request: Request, progress: Progress | None = None) -> Survey:
    """Return the state of every step, with the reasons to run it. Raises EpbuildError.

    Builds nothing and provisions no toolchain. If nothing has changed since the last run, the survey contains only the
    states of steps. `progress` receives events while files are hashed.
    """
    last = read_last(request)
    if last is not None:
        return read_survey(last)
    with open_session(request, progress) as session:
        return session.survey()


class Explanation(Struct, frozen=True):
    """State of a step and the reasons for it. `built` is the time of the step's last run in Unix seconds, or None if it never ran.

    `reasons` are those that `plan` shows. `changes` are the inputs in the key document that changed. `causes` explain the
    steps that this step waits for, and the steps whose results have changed.
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
    """True if the result is only in the remote cache."""


def explain(request: Request, steps: Sequence[str], progress: Progress | None = None) -> list[Explanation]:
    """Return explanations of all steps that match one of the globs `steps`, in the order of the plan.

    The whole recipe is surveyed, because some steps run only if a dependent step needs the result. Raises PlanError (EPB240)
    if a glob matches nothing, and the errors of `survey`.
    """
    with open_session(request, progress) as session:
        found = session.survey()
    wanted = _select_steps(found, steps, request.places)
    with Workspace.open(get_workspace_folder(request.recipe), create=False) as workspace:
        explainer = _Explainer(found, workspace.memory(found.configuration), open_action_records(find_cache_directory()))
        return [explainer.explain(step) for step in wanted]


class _Explainer(Struct, frozen=True, dict=True):
    found: Survey
    memory: Memory
    records: ActionRecords
    _known: dict[tuple[str, str | None], Explanation] = field(default_factory=dict)

    @cached_property
    def _last(self) -> dict[str, Step]:
        """Last step of each action, by the id of the action. An action has the id of its last step."""
        return {step.action: step for step in self.found.plan.steps if step.id == step.action}

    def explain(self, step: Step, made_of: str | None = None) -> Explanation:
        """Explain the state of `step`. `made_of` is the key of an earlier result of the step, if a dependent step was built from it.

        The steps of one action share an explanation, which is computed once.
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
            # The action was rebuilt since then. The key document of its earlier result shows what changed.
            document = (self.records.get(made_of) or {}).get("document")
        return Explanation(
            step=step,
            state=status.state,
            key=status.key,
            previous_key=before.action_key if before else None,
            built=before.finished if before else None,
            reasons=status.reasons,
            changes=tuple(compare_documents(document, status.document)) if document and status.document else (),
            causes=tuple(self._find_causes(step, status)),
            remote=status.remote,
        )

    def _find_causes(self, step: Step, status: ActionStatus) -> Iterator[Explanation]:
        action = self.found.plan.actions[step.action]
        if status.state == "current":
            return
        used = self._get_used_keys(action)
        for ident in action.needs:
            need = self.found.actions[ident]
            changed = ident in used and used[ident] != need.key
            if changed or need.state in ("out of date", "new"):
                yield self.explain(self._last[ident], used.get(ident))

    def _get_used_keys(self, action: Action) -> dict[str, str]:
        """Return the keys of the results that an action's last run used as inputs, by action."""
        before = self.memory.previous(action.id)
        made = before.key_document.get("made", {}) if before else {}
        return {ident: item["key"] for ident, item in made.items()}


def _select_steps(found: Survey, globs: Sequence[str], places: Places) -> list[Step]:
    ids = {status.step.id: status for status in found.steps()}
    named = {glob: match_ids(ids, glob) for glob in globs}
    problems = [
        Problem("EPB240", f"no step matches '{glob}'", places.get(glob), _suggest_steps(glob, list(ids)))
        for glob, names in named.items()
        if not names
    ]
    if problems:
        raise PlanError(*problems)
    wanted = {ident for names in named.values() for ident in names}
    return [step for step in found.plan.steps if step.id in wanted]


def _suggest_steps(glob: str, ids: Sequence[str]) -> str:
    close = [f"'{ident}'" for ident in difflib.get_close_matches(glob, ids)]
    return f"Did you mean {' or '.join(close)}?" if close else "List the steps with `epbuild plan`."
