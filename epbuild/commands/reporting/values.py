"""`Report`: facts about a recipe and its last build.

`epbuild report --json` prints the report, HTML pages embed it, and `schemas/report.schema.json` describes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from epbuild.commands.reporting.build_record import (
    ReportedError,
    ReportedPastBuild,
    ReportedPublication,
    ReportedSpan,
    ReportedTraffic,
    RunOutcome,
)
from epbuild.commands.reporting.changes import ReportedAgainst
from epbuild.commands.reporting.failures import ReportedFailure
from epbuild.commands.reporting.recipe_values import (
    ReportedAccuracy,
    ReportedCoverage,
    ReportedMachine,
    ReportedMeasurement,
    ReportedModel,
    ReportedOutput,
    ReportedRecipe,
    ReportedSharing,
    ReportedTarget,
    ReportedToolchain,
)
from epbuild.core.summary import Summarized, Summary
from epbuild.core.units import format_count
from epbuild.engine.events import Origin
from epbuild.plan.steps import StepKind
from epbuild.session.coverage import COVERAGE_COLUMNS
from epbuild.survey.action_status import StepState

FORMAT = 1


class ReportedStep(Struct, frozen=True):
    """Step of the plan, with its state and its outcome in the last build."""

    id: str
    """Id of the step."""
    kind: StepKind
    """Kind of the step."""
    action: str
    """Id of the action, which is the id of its last step. The steps of one action run together."""
    group: str | None
    """Group; null if the step does not belong to exactly one group and target."""
    target: str | None
    """Target; null if the step does not belong to exactly one group and target."""
    needs: tuple[str, ...]
    """Ids of the steps that must finish first."""
    state: StepState
    """Current state."""
    remote: bool
    """True if the result is only in the remote cache."""
    reasons: tuple[str, ...]
    """Reasons why a build would run the step; empty if the step is current."""
    key: str | None
    """Action key; null if it is not known yet."""
    seconds: float | None
    """Duration of the run that built the result. A share step includes its compiles."""
    size: int | None
    """Number of bytes that the step wrote."""
    memory: int | None
    """Peak memory of the action's processes in bytes; null except for the last step of the action."""
    note: str
    """Remarks on the result."""
    outcome: RunOutcome | None
    """Outcome in the last build; null if the build did not include the step."""
    was: StepState | None
    """State before the last build."""
    because: tuple[str, ...]
    """Reasons why the last build ran the step."""
    took: float | None
    """Duration in the last build. A share step includes its compiles."""
    work: float | None
    """Time that the last build spent on the step itself, without its compiles; null if the step did not run."""
    started: float | None
    """Start in the last build, in seconds since the build's start; null if the step did not run."""
    ended: float | None
    """End in the last build, in seconds since the build's start."""
    worker: int | None
    """Number of the action's slot, from 0. Actions that run at once have different slots."""
    machine: str | None
    """Name of the machine that ran the step; null for this machine."""
    origin: Origin | None
    """Source of a restored result; null for the store."""
    errors: tuple[ReportedError, ...]
    """Errors of the step's last failure; empty if an input has changed since then."""
    log: str | None = None
    """Last lines of the log of the failure, at most 100; null without a failure. Only the first 200 failed steps have it."""


class ReportedBuild(Struct, frozen=True):
    """Last build of the recipe, with the same settings, in which a step was out of date."""

    began: str
    """Start of the build, in RFC 3339 format."""
    seconds: float
    """Duration of the build."""
    exit_code: int
    """Exit code; 130 if the build was interrupted."""
    epbuild: str
    """Version of epbuild."""
    machine: str
    """Host name of the machine."""
    jobs: int
    """Maximum number of actions to run at once."""
    steps: int
    """Number of requested steps."""
    todo: int
    """Number of steps that were out of date."""
    outcomes: Mapping[str, int]
    """Number of steps by outcome."""
    spans: tuple[ReportedSpan, ...]
    """Work that is not part of a step."""
    published: tuple[ReportedPublication, ...]
    """Outputs that were emitted or removed."""
    remote: tuple[ReportedTraffic, ...]
    """Use of remote caches."""


class ReportedWarning(Struct, frozen=True):
    """Warning about the recipe or its plan."""

    code: str
    """Error code."""
    message: str
    """Description of the problem."""
    hint: str | None
    """Suggested fix."""
    where: str | None
    """Position in the recipe, or the step."""


class Report(Summarized, Struct, frozen=True):
    """Report of a recipe and its builds, as `epbuild report` shows it."""

    format: int
    """Format version of the document."""
    epbuild: str
    """Version of epbuild."""
    made_at: str
    """Time when the report was written, in RFC 3339 format."""
    recipe: ReportedRecipe
    """The recipe."""
    machine: ReportedMachine
    """The machine that wrote the report."""
    toolchains: tuple[ReportedToolchain, ...]
    """Toolchains of the plan."""
    targets: tuple[ReportedTarget, ...]
    """Targets of the plan."""
    models: tuple[ReportedModel, ...]
    """Source models of the plan."""
    steps: tuple[ReportedStep, ...]
    """Steps of the plan, in order."""
    coverage: tuple[ReportedCoverage, ...]
    """Coverage of each model for each target."""
    outputs: tuple[ReportedOutput, ...]
    """Outputs of the recipe."""
    sharing: tuple[ReportedSharing, ...]
    """Known savings of weight-sharing groups."""
    accuracy: tuple[ReportedAccuracy, ...]
    """Differences between outputs of compiled models and outputs of their sources, if the recipe verifies numbers."""
    build: ReportedBuild | None
    """The last build; null if none is recorded."""
    warnings: tuple[ReportedWarning, ...]
    """Warnings about the recipe and its plan."""
    failures: tuple[ReportedFailure, ...]
    """Errors of failed steps, by reason."""
    against: ReportedAgainst | None
    """Changes since an earlier report was written or outputs were emitted; null if nothing was compared."""
    measurements: tuple[ReportedMeasurement, ...] = ()
    """Measured figures of compiled models, if the recipe measures them."""
    history: tuple[ReportedPastBuild, ...] = ()
    """The last builds of the recipe, with the same settings, oldest first."""

    def summarize(self) -> Summary:
        """Return the states of the steps, the last build, and the coverage of each model."""
        states = Counter(step.state for step in self.steps)
        steps = f"{format_count(len(self.steps), 'step')}: {', '.join(f'{number} {state}' for state, number in states.items())}"
        last = (
            "never built" if self.build is None else f"last build: {self.build.seconds:,.1f} s, exit code {self.build.exit_code}"
        )
        rows = [
            (row.model, row.target, row.outcome, "" if row.fallback_nodes is None else str(row.fallback_nodes), row.reason or "")
            for row in self.coverage
        ]
        return Summary(f"{self.recipe.name}: {steps}; {last}", COVERAGE_COLUMNS, rows)


class MeasuredModels(Summarized, tuple[ReportedMeasurement, ...]):
    """Figures of all measured models, in plan order."""

    __slots__ = ()

    def summarize(self) -> Summary:
        """Return the figures of each model for each target."""
        names = list(dict.fromkeys(name for row in self for name in row.figures))
        rows = [
            (row.member, row.target, row.device or row.on, *(f"{row.figures.get(name, '')}" for name in names)) for row in self
        ]
        return Summary(format_count(len(self), "measured model"), ("model", "target", "on", *names), rows)
