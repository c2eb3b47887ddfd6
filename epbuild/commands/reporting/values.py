"""`Report`: facts about a recipe and its last build.

`epbuild report --json` prints it, pages embed it, and `schemas/report.schema.json` describes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from epbuild.commands.reporting.build_record import ReportedError, ReportedPublication, ReportedSpan, ReportedTraffic, RunOutcome
from epbuild.commands.reporting.changes import ReportedAgainst
from epbuild.commands.reporting.recipe_values import (
    ReportedAccuracy,
    ReportedCoverage,
    ReportedMachine,
    ReportedModel,
    ReportedOutput,
    ReportedRecipe,
    ReportedSharing,
    ReportedTarget,
    ReportedToolchain,
)
from epbuild.engine.events import Origin
from epbuild.plan.steps import StepKind
from epbuild.survey.action_status import StepState

FORMAT = 1


class ReportedStep(Struct, frozen=True):
    """Step of the plan: its state, and its part in the last build."""

    id: str
    """Id of the step."""
    kind: StepKind
    """Kind of the step."""
    action: str
    """Id of the last step of its action. The steps of one action run together."""
    group: str | None
    """Group; null if the step serves several."""
    target: str | None
    """Target; null if the step serves several."""
    needs: tuple[str, ...]
    """Ids of the steps that must finish first."""
    state: StepState
    """Current state."""
    remote: bool
    """True if the result is only in the remote cache."""
    reasons: tuple[str, ...]
    """Reasons why a build would run it; empty if it is current."""
    key: str | None
    """Action key; null if it is not known yet."""
    seconds: float | None
    """Duration when the result was built. A share step includes its compiles."""
    size: int | None
    """Bytes that it wrote."""
    memory: int | None
    """Peak memory of the processes of its action, on the last step of the action."""
    note: str
    """Remarks on the result."""
    outcome: RunOutcome | None
    """Outcome in the last build; null if it was not part of it."""
    was: StepState | None
    """State before the last build."""
    because: tuple[str, ...]
    """Reasons why the last build ran it."""
    took: float | None
    """Duration in the last build. A share step includes its compiles."""
    started: float | None
    """Start in the last build, from the build's start; null if it did not run."""
    ended: float | None
    """End in the last build, from the build's start."""
    worker: int | None
    """Number of its action's slot, from 0, among the actions that ran at once."""
    machine: str | None
    """Other machine that built it; null for this one."""
    origin: Origin | None
    """Source of a restored result; null for the store."""
    errors: tuple[ReportedError, ...]
    """Reasons for its last failure, if no input has changed since."""


class ReportedBuild(Struct, frozen=True):
    """Last build of this recipe and these settings that had something to do."""

    began: str
    """Start, as in RFC 3339."""
    seconds: float
    """Duration."""
    exit_code: int
    """Exit code; 130 if the build was interrupted."""
    epbuild: str
    """Version of epbuild."""
    machine: str
    """Host name of the machine."""
    jobs: int
    """Maximum number of actions at once."""
    steps: int
    """Number of requested steps."""
    todo: int
    """Number of steps that were out of date."""
    outcomes: Mapping[str, int]
    """Number of steps by outcome."""
    spans: tuple[ReportedSpan, ...]
    """Work other than steps."""
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


class Report(Struct, frozen=True):
    """Report of a recipe and its builds, as `epbuild report` shows it."""

    format: int
    """Number of the format. It increases with a change that breaks readers."""
    epbuild: str
    """Version of epbuild."""
    made_at: str
    """Time of the report, as in RFC 3339."""
    recipe: ReportedRecipe
    """The recipe."""
    machine: ReportedMachine
    """The machine that made the report."""
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
    """Savings of sharing groups, as far as they are known."""
    accuracy: tuple[ReportedAccuracy, ...]
    """Differences of outputs of compiled models from those of their sources, if the recipe verifies them."""
    build: ReportedBuild | None
    """The last build; null if none is recorded."""
    warnings: tuple[ReportedWarning, ...]
    """Warnings about the recipe and its plan."""
    against: ReportedAgainst | None
    """Changes since another report or since outputs were emitted; null without `--against` and an earlier report."""
