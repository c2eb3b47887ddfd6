"""JSON documents of recipes: plan, coverage, explanation, lock and import."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from epbuild.commands.reporting.recipe_values import ReportedMeasurement
from epbuild.plan.steps import StepKind
from epbuild.recipe.model import Defaults
from epbuild.report.json.documents import Document, ProblemView, View, build_problem_views, build_view, to_plain
from epbuild.session.events import Coverage
from epbuild.survey.action_status import StepState
from epbuild.toolchain.lock import LockChange

if TYPE_CHECKING:
    from epbuild.commands.importing.importing import ImportedRecipe
    from epbuild.commands.lock import Locking
    from epbuild.commands.plan import Explanation
    from epbuild.commands.workload import Workload
    from epbuild.core.errors import Problem
    from epbuild.session.events import ModelCovered
    from epbuild.survey.jobs import RunnerJob
    from epbuild.survey.status import StepStatus, Survey


class StepView(View, frozen=True, kw_only=True):
    """Step with its state, and the reasons to run it."""

    id: str
    """Id of the step."""
    kind: StepKind
    """Kind of the step."""
    state: StepState
    """State of the step."""
    remote: bool
    """True if the result is only in the remote cache."""
    reasons: tuple[str, ...]
    """Reasons why the step would run."""
    key: str | None
    """Action key; null if it is not known yet."""
    needs: tuple[str, ...]
    """Ids of the steps that must finish first."""
    outputs: tuple[str, ...]
    """Paths of the files that the step emits."""
    device: str | UnsetType = UNSET
    """`real` if the step needs a real device; absent otherwise."""


class OrphanView(View, frozen=True, kw_only=True):
    """Emitted output that the recipe no longer defines."""

    step: str
    """Id of the former emit step."""
    directory: str
    """Path of the output."""


class PlanDocument(Document, frozen=True, kw_only=True):
    """Document that `plan --json` prints."""

    recipe: str
    """Path of the recipe."""
    defaults: Defaults
    """Defaults that the recipe uses."""
    steps: tuple[StepView, ...]
    """All steps, in order."""
    orphans: tuple[OrphanView, ...]
    """Emitted outputs that the recipe no longer defines."""
    warnings: tuple[ProblemView, ...]
    """Warnings about the recipe."""


class ValidationDocument(Document, frozen=True, kw_only=True):
    """Document that `validate --json` prints."""

    recipe: str
    """Path of the recipe."""
    valid: bool
    """True if the recipe can be built."""
    problems: tuple[ProblemView, ...] = ()
    """Errors; empty if the recipe is valid."""
    warnings: tuple[ProblemView, ...] = ()
    """Warnings."""
    notes: tuple[ProblemView, ...] = ()
    """Notes about steps that this machine cannot build."""
    unread: tuple[str, ...] = ()
    """Models that were not checked, because they have not been fetched or made yet."""


class FallbackView(View, frozen=True, kw_only=True):
    """Fallback nodes with the same operator and reason."""

    operator: str
    """Operator, with its domain."""
    count: int
    """Number of nodes."""
    reason: str | None
    """Reason that the EP reported; null if it reported none."""
    nodes: tuple[str, ...]
    """Names of the nodes."""


class CoveredView(View, frozen=True, kw_only=True):
    """Coverage of a model for a target."""

    model: str
    """Name of the model."""
    target: str
    """Name of the target."""
    outcome: Coverage
    """`whole` and `partial`: the EPs took all nodes, or only some. `on the CPU`: the recipe has `compile: none` for the model.
    `failed`: the model could not be compiled, or does not meet `expect`. `failed verify` and `failed measure`: the model
    was compiled, but its `verify` or `measure` step failed.
    `not built`: the model was not compiled."""
    ep_context_nodes: int | None
    """Number of EPContext nodes; null if nothing was compiled."""
    left: tuple[FallbackView, ...]
    """Fallback nodes, by operator and reason."""
    reason: str | None
    """Reason why nothing was compiled, or why `verify` or `measure` failed."""
    size: int | None
    """Bytes of all files that the model needs."""
    seconds: float | None
    """Duration of the compile."""
    accuracy: Mapping[str, float] | None
    """Metrics of the model's verification; null if it was not verified."""


class CoverageDocument(Document, frozen=True, kw_only=True):
    """Document that `coverage --json` prints."""

    rows: tuple[CoveredView, ...]
    """Coverage of each model for each target."""


class MeasurementsDocument(Document, frozen=True, kw_only=True):
    """Document that `measure --json` prints."""

    rows: tuple[ReportedMeasurement, ...]
    """Figures of each measured model for each target."""


class ChangeView(View, frozen=True, kw_only=True):
    """Input of a step that changed since the last build."""

    what: str
    """Name of the input."""
    place: tuple[str, ...]
    """Path of the input in the key document."""
    old: object
    """Old value; null if the input is new."""
    new: object
    """New value; null if the input was removed."""


class CauseView(View, frozen=True, kw_only=True):
    """Step with its state, its changed inputs, and the steps that cause it to run."""

    id: str
    """Id of the step."""
    state: StepState
    """State of the step."""
    remote: bool
    """True if the result is only in the remote cache."""
    reasons: tuple[str, ...]
    """Reasons why the step would run."""
    key: str | None
    """Action key; null if it is not known yet."""
    previous_key: str | None
    """Action key of the last build; null if there was none."""
    built: float | None
    """Time of the last build, in Unix seconds; null if there was none."""
    changes: tuple[ChangeView, ...]
    """Inputs in the key document that changed since the last build."""
    causes: tuple[CauseView, ...]
    """Steps that cause this step to run."""


class ExplanationDocument(Document, frozen=True, kw_only=True):
    """Document that `explain --json` prints."""

    recipe: str
    """Path of the recipe."""
    steps: tuple[CauseView, ...]
    """The explained steps."""


class UnfitMachineView(View, frozen=True, kw_only=True):
    """Machine that cannot run certain actions, with the reason."""

    machine: str
    """Name of the machine."""
    why: str
    """Reason why the machine cannot run the actions."""


class WorkloadView(View, frozen=True, kw_only=True):
    """Actions with the same requirements, and the machines that can run them."""

    platform: str
    """Platform that the actions need."""
    eps: tuple[str, ...]
    """EPs that the actions need; empty if the actions prepare models."""
    actions: int
    """Number of actions."""
    seconds: float
    """Sum of the actions' expected durations."""
    machines: tuple[str, ...]
    """Names of the machines that can run the actions."""
    slots: int
    """Number of actions that these machines can run at once."""
    real_device: bool
    """True if the actions need a real device."""
    untried: tuple[str, ...]
    """Machines that can run the actions, but have not run similar actions before."""
    others: tuple[UnfitMachineView, ...]
    """Machines that cannot run the actions."""
    likely_seconds: float | None
    """Expected duration on these machines; null if no machine can run the actions."""


class WorkloadsDocument(Document, frozen=True, kw_only=True):
    """Document that `plan --executor ADDRESS --json` prints."""

    executor: str
    """Address of the scheduler."""
    workloads: tuple[WorkloadView, ...]
    """Missing actions, grouped by requirements."""


class MatrixJobView(View, frozen=True):
    """Job of a CI system."""

    runner: str | tuple[str, ...]
    """Label of the runner, or a list of labels."""
    steps: str
    """Steps to build, one per line."""
    seconds: float
    """Expected duration."""


class MatrixDocument(View, frozen=True):
    """Document that `plan --matrix` prints: a single line for `strategy.matrix` of GitHub Actions. It has no key `format`."""

    include: tuple[MatrixJobView, ...]
    """Jobs, longest first."""


def build_plan_document(recipe: str, found: Survey) -> PlanDocument:
    """Return the document of `plan --json`: every step with its state and the reasons to run it."""
    return PlanDocument(
        recipe=recipe,
        defaults=found.plan.defaults,
        steps=tuple(_build_step_view(found, status) for status in found.steps()),
        orphans=tuple(OrphanView(step=orphan.step, directory=orphan.directory.as_posix()) for orphan in found.orphans),
        warnings=build_problem_views(found.plan.warnings),
    )


def print_matrix(jobs: Iterable[RunnerJob]) -> None:
    """Write `plan --matrix` as a single line for GitHub Actions. A job's steps are joined by line breaks."""
    included = tuple(MatrixJobView(job.runner, "\n".join(job.steps), round(job.seconds, 1)) for job in jobs)
    sys.stdout.write(json.dumps(to_plain(MatrixDocument(included))) + "\n")


def build_coverage_document(rows: Sequence[ModelCovered]) -> CoverageDocument:
    """Return the document of `coverage --json`."""
    return CoverageDocument(rows=tuple(build_view(CoveredView, row, left=_build_fallback_views(row)) for row in rows))


def build_measurements_document(rows: Sequence[ReportedMeasurement]) -> MeasurementsDocument:
    """Return the document of `measure --json`."""
    return MeasurementsDocument(rows=tuple(rows))


def build_explanation_document(recipe: str, found: Sequence[Explanation]) -> ExplanationDocument:
    """Return the document of `explain --json`: every explained step with its state and its changed inputs."""
    return ExplanationDocument(recipe=recipe, steps=tuple(map(_build_cause_view, found)))


def build_workloads_document(loads: Sequence[Workload], address: str) -> WorkloadsDocument:
    """Return the document of `plan --executor ADDRESS --json`: a plan's missing work, and the machines that can do the work."""
    return WorkloadsDocument(
        executor=address,
        workloads=tuple(build_view(WorkloadView, load) for load in loads),
    )


def _build_step_view(found: Survey, status: StepStatus) -> StepView:
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


def _build_fallback_views(row: ModelCovered) -> list[FallbackView]:
    groups = row.outside.groups if row.outside is not None else ()
    return [FallbackView(operator=one.operator, count=len(one.nodes), reason=one.reason, nodes=one.nodes) for one in groups]


def _build_cause_view(explanation: Explanation) -> CauseView:
    changes = []
    for change in explanation.changes:
        old, new = change.shown_values
        changes.append(ChangeView(what=change.what, place=change.place, old=old, new=new))
    return build_view(
        CauseView,
        explanation,
        id=explanation.step.id,
        built=None if explanation.built is None else round(explanation.built, 3),
        changes=changes,
        causes=[*map(_build_cause_view, explanation.causes)],
    )


class LockDocument(Document, frozen=True, kw_only=True):
    """Document that `lock --json` prints."""

    recipe: str
    """Path of the recipe."""
    lock: str
    """Path of the lock file."""
    changed: bool
    """True if the lock file was out of date."""
    written: bool
    """True if the lock file was written."""
    changes: tuple[LockChange, ...]
    """Changes from the old lock to the new lock."""
    exported: dict[str, str | None] | UnsetType = UNSET
    """Path of each toolchain's pylock file, with `--export`; null for a toolchain without one."""
    warnings: tuple[ProblemView, ...]
    """Warnings about the recipe and its lock."""


class NotCarriedView(View, frozen=True, kw_only=True):
    """Setting in the imported configuration that has no equivalent in a recipe."""

    what: str
    """Name of the setting."""
    why: str
    """Reason why the setting was not carried over."""
    hint: str | None
    """Suggested fix."""


class ImportedDocument(Document, frozen=True, kw_only=True):
    """Document that `import --json` prints."""

    recipe: str
    """Path of the written recipe."""
    tool: str
    """Tool whose configuration or command line was imported."""
    ep: str
    """Name of the EP."""
    models: list[str]
    """Paths of the models."""
    targets: list[str]
    """Names of the targets."""
    not_carried_over: list[NotCarriedView]
    """Settings in the imported configuration that have no equivalent in a recipe."""
    warnings: tuple[ProblemView, ...]
    """Warnings about the recipe."""


def build_lock_document(
    locking: Locking, warnings: Sequence[Problem], exported: Mapping[str, Path | None], *, written: bool
) -> LockDocument:
    """Return the document of `lock --json`."""
    return LockDocument(
        recipe=str(locking.recipe.file),
        lock=str(locking.path),
        changed=not locking.is_written,
        written=written,
        changes=tuple(locking.changes),
        exported={name: None if path is None else str(path) for name, path in exported.items()} or UNSET,
        warnings=build_problem_views(warnings),
    )


def build_imported_document(done: ImportedRecipe) -> ImportedDocument:
    """Return the document of `import --json`."""
    return ImportedDocument(
        recipe=str(done.path),
        tool=done.tool,
        ep=done.choices.kind.entry.ep,
        models=[*done.choices.models],
        targets=[*done.choices.targets],
        not_carried_over=[build_view(NotCarriedView, item, hint=item.hint or None) for item in done.left],
        warnings=build_problem_views(done.warnings),
    )
