"""JSON documents of recipes: plan, coverage, explanation, lock and import."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from epbuild.report.json.documents import Document, ProblemView, View, problem_views, view
from epbuild.toolchain.lock import LockChange

if TYPE_CHECKING:
    from epbuild.commands.explain import Explanation
    from epbuild.commands.importing.importing import ImportedRecipe
    from epbuild.commands.lock import Locking
    from epbuild.commands.workload import Workload
    from epbuild.core.errors import Problem
    from epbuild.session.events import ModelCovered
    from epbuild.survey.jobs import RunnerJob
    from epbuild.survey.status import StepStatus, Survey


class StepView(View, frozen=True, kw_only=True):
    """Step with its state, and why it would run."""

    id: str
    kind: str
    state: str
    remote: bool
    reasons: tuple[str, ...]
    key: str | None
    needs: tuple[str, ...]
    outputs: tuple[str, ...]
    device: str | UnsetType = UNSET
    """`real` if the step needs a real device."""


class OrphanView(View, frozen=True, kw_only=True):
    """Emitted output that the recipe no longer asks for."""

    step: str
    directory: str


class DefaultsView(View, frozen=True, kw_only=True):
    """Defaults that a recipe takes."""

    name: str | None
    toolchains: dict[str, tuple[str, ...]]
    groups: tuple[str, ...]
    output: str | None


class PlanDocument(Document, frozen=True, kw_only=True):
    """`plan --json`."""

    recipe: str
    defaults: DefaultsView
    steps: tuple[StepView, ...]
    orphans: tuple[OrphanView, ...]
    warnings: tuple[ProblemView, ...]


class ValidationDocument(Document, frozen=True, kw_only=True):
    """`validate --json`."""

    recipe: str
    valid: bool
    problems: tuple[ProblemView, ...] = ()
    warnings: tuple[ProblemView, ...] = ()
    notes: tuple[ProblemView, ...] = ()


class LeftView(View, frozen=True, kw_only=True):
    """Fallback nodes of one operator and one reason."""

    operator: str
    count: int
    reason: str | None
    nodes: tuple[str, ...]


class CoveredView(View, frozen=True, kw_only=True):
    """Coverage of a model for a target."""

    model: str
    target: str
    outcome: str
    ep_context_nodes: int | None
    left: tuple[LeftView, ...]
    reason: str | None
    size: int | None
    seconds: float | None
    accuracy: Mapping[str, float] | None


class CoverageDocument(Document, frozen=True, kw_only=True):
    """`coverage --json`."""

    rows: tuple[CoveredView, ...]


class ChangeView(View, frozen=True, kw_only=True):
    """Fact that changed since a step was built."""

    what: str
    place: tuple[str, ...]
    old: object
    new: object


class CauseView(View, frozen=True, kw_only=True):
    """Step with its state, the facts that changed, and the steps behind it."""

    id: str
    state: str
    remote: bool
    reasons: tuple[str, ...]
    key: str | None
    previous_key: str | None
    built: float | None
    changes: tuple[ChangeView, ...]
    causes: tuple[CauseView, ...]


class ExplanationDocument(Document, frozen=True, kw_only=True):
    """`explain --json`."""

    recipe: str
    steps: tuple[CauseView, ...]


class UnfitMachineView(View, frozen=True, kw_only=True):
    """Machine that cannot run some work, and why."""

    machine: str
    why: str


class WorkloadView(View, frozen=True, kw_only=True):
    """Actions with the same requirements, and the machines that can run them."""

    platform: str
    eps: tuple[str, ...]
    actions: int
    seconds: float
    machines: tuple[str, ...]
    slots: int
    real_device: bool
    untried: tuple[str, ...]
    others: tuple[UnfitMachineView, ...]
    likely_seconds: float | None


class WorkloadsDocument(Document, frozen=True, kw_only=True):
    """`plan --executor ADDRESS --json`."""

    executor: str
    workloads: tuple[WorkloadView, ...]


def plan_document(recipe: str, found: Survey) -> PlanDocument:
    """Return `plan --json`: every step with its state, and why."""
    return PlanDocument(
        recipe=recipe,
        defaults=view(DefaultsView, found.plan.defaults),
        steps=tuple(_step(found, status) for status in found.steps()),
        orphans=tuple(OrphanView(step=orphan.step, directory=orphan.directory.as_posix()) for orphan in found.orphans),
        warnings=problem_views(found.plan.warnings),
    )


def print_matrix(jobs: Iterable[RunnerJob]) -> None:
    """Write `plan --matrix`: a matrix of GitHub Actions on one line. The steps of a job are the lines of one text."""
    included = [{"runner": job.runner, "steps": "\n".join(job.steps), "seconds": round(job.seconds, 1)} for job in jobs]
    sys.stdout.write(json.dumps({"include": included}) + "\n")


def coverage_document(rows: Sequence[ModelCovered]) -> CoverageDocument:
    """Return `coverage --json`."""
    return CoverageDocument(rows=tuple(view(CoveredView, row, left=_left(row)) for row in rows))


def explanation_document(recipe: str, found: Sequence[Explanation]) -> ExplanationDocument:
    """Return `explain --json`: every explained step with its state, and the facts that changed."""
    return ExplanationDocument(recipe=recipe, steps=tuple(map(_cause, found)))


def workloads_document(loads: Sequence[Workload], address: str) -> WorkloadsDocument:
    """Return the missing work of a plan, and the machines of a cluster that can do it."""
    return WorkloadsDocument(
        executor=address,
        workloads=tuple(view(WorkloadView, load) for load in loads),
    )


def _step(found: Survey, status: StepStatus) -> StepView:
    return StepView(
        id=status.step.id,
        kind=status.step.kind,
        state=status.state,
        remote=status.remote,
        reasons=status.reasons,
        key=status.key,
        needs=status.step.needs,
        outputs=status.outputs,
        device="real" if status.on_real_device else UNSET,
    )


def _left(row: ModelCovered) -> list[LeftView]:
    groups = row.outside.groups if row.outside is not None else ()
    return [LeftView(operator=one.operator, count=len(one.nodes), reason=one.reason, nodes=one.nodes) for one in groups]


def _cause(explanation: Explanation) -> CauseView:
    changes = []
    for change in explanation.changes:
        old, new = change.shown_values
        changes.append(ChangeView(what=change.what, place=change.place, old=old, new=new))
    return view(
        CauseView,
        explanation,
        id=explanation.step.id,
        built=None if explanation.built is None else round(explanation.built, 3),
        changes=changes,
        causes=[*map(_cause, explanation.causes)],
    )


class LockDocument(Document, frozen=True, kw_only=True):
    """`lock --json`."""

    recipe: str
    lock: str
    changed: bool
    written: bool
    changes: tuple[LockChange, ...]
    exported: dict[str, str | None] | UnsetType = UNSET
    """Exported file of each toolchain."""
    warnings: tuple[ProblemView, ...]


class NotCarriedView(View, frozen=True, kw_only=True):
    """Part of a configuration that has no place in a recipe."""

    what: str
    why: str
    hint: str | None


class ImportedDocument(Document, frozen=True, kw_only=True):
    """`import --json`."""

    recipe: str
    tool: str
    ep: str
    models: list[str]
    targets: list[str]
    not_carried_over: list[NotCarriedView]
    warnings: tuple[ProblemView, ...]


def lock_document(
    locking: Locking, warnings: Sequence[Problem], exported: Mapping[str, Path | None], *, written: bool
) -> LockDocument:
    """Return `lock --json`."""
    return LockDocument(
        recipe=str(locking.recipe.file),
        lock=str(locking.path),
        changed=not locking.is_written,
        written=written,
        changes=tuple(locking.changes),
        exported={name: None if path is None else str(path) for name, path in exported.items()} or UNSET,
        warnings=problem_views(warnings),
    )


def imported_document(done: ImportedRecipe) -> ImportedDocument:
    """Return `import --json`."""
    return ImportedDocument(
        recipe=str(done.path),
        tool=done.tool,
        ep=done.choices.kind.entry.ep,
        models=[*done.choices.models],
        targets=[*done.choices.targets],
        not_carried_over=[view(NotCarriedView, item, hint=item.hint or None) for item in done.left],
        warnings=problem_views(done.warnings),
    )
