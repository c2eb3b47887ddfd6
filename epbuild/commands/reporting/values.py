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
    """A step of the plan: its state now, and what the last build did for it."""

    id: str
    """Its id."""
    kind: StepKind
    """Its kind."""
    action: str
    """The id of the last step of its action: the steps of one action are done together."""
    group: str | None
    """The group; null for what serves several, such as a preparation or a package."""
    target: str | None
    """The target; null for what serves several."""
    needs: tuple[str, ...]
    """The ids of the steps before it."""
    state: StepState
    """Its state now."""
    remote: bool
    """Whether its result is in the remote cache, and not here."""
    reasons: tuple[str, ...]
    """Why a build would run it now; none where it is current."""
    key: str | None
    """The action key; null while it is not known."""
    seconds: float | None
    """What it took when it was made, whenever that was; a share step's has those of its compiles in it."""
    size: int | None
    """The bytes that it wrote."""
    memory: int | None
    """The peak memory of the processes of its action, on the last step of that."""
    note: str
    """What else is worth knowing of its result."""
    outcome: RunOutcome | None
    """What came of it in the last build; null where that had nothing to do with it."""
    was: StepState | None
    """Its state before the last build."""
    because: tuple[str, ...]
    """Why the last build ran it, beside that."""
    took: float | None
    """What it took in the last build; a share step's has those of its compiles in it."""
    started: float | None
    """When the last build began with it, from the build's start; null where it did not."""
    ended: float | None
    """When it ended, from the build's start."""
    worker: int | None
    """The place, counted from 0, that its action had among those that ran at once."""
    machine: str | None
    """The other machine that made it; null: this one."""
    origin: Origin | None
    """Where a result that was restored came from; null: from the store."""
    errors: tuple[ReportedError, ...]
    """Why it failed, where it is not made: in the last build that tried, if nothing has changed for it since."""


class ReportedBuild(Struct, frozen=True):
    """The last build of this configuration that had something to do."""

    began: str
    """When it began, as RFC 3339 has times."""
    seconds: float
    """What it took."""
    exit_code: int
    """What it ended with; 130: it was interrupted."""
    epbuild: str
    """The release that built."""
    machine: str
    """The host name of the machine that built."""
    jobs: int
    """How many actions might run at once."""
    steps: int
    """The steps that were asked for."""
    todo: int
    """Those that were to do."""
    outcomes: Mapping[str, int]
    """How many steps came to what, by outcome."""
    spans: tuple[ReportedSpan, ...]
    """What it did beside its steps."""
    published: tuple[ReportedPublication, ...]
    """What became of its outputs."""
    remote: tuple[ReportedTraffic, ...]
    """What it had of remote caches."""


class ReportedWarning(Struct, frozen=True):
    """Something that is not wrong, but is not likely to be meant."""

    code: str
    """Its code."""
    message: str
    """What it is."""
    hint: str | None
    """What to do."""
    where: str | None
    """The place in the recipe, or the step."""


class Report(Struct, frozen=True):
    """What a recipe's builds came to, as `epbuild report` has it."""

    format: int
    """The number of this format; it changes when a reader must."""
    epbuild: str
    """The release that made the report."""
    made_at: str
    """When it was made, as RFC 3339 has times."""
    recipe: ReportedRecipe
    """The recipe."""
    machine: ReportedMachine
    """The machine that the report was made on."""
    toolchains: tuple[ReportedToolchain, ...]
    """The toolchains of the plan."""
    targets: tuple[ReportedTarget, ...]
    """The targets of the plan."""
    models: tuple[ReportedModel, ...]
    """The source models of the plan."""
    steps: tuple[ReportedStep, ...]
    """The steps of the plan, in order."""
    coverage: tuple[ReportedCoverage, ...]
    """How far each model is compiled for each target, model by model."""
    outputs: tuple[ReportedOutput, ...]
    """The outputs that the recipe asks for."""
    sharing: tuple[ReportedSharing, ...]
    """What sharing groups save, as far as that is known."""
    accuracy: tuple[ReportedAccuracy, ...]
    """How near the numbers of compiled models are to those of their sources, where the recipe asks for that."""
    build: ReportedBuild | None
    """The last build; null: none is remembered here."""
    warnings: tuple[ReportedWarning, ...]
    """The warnings about the recipe and its plan."""
    against: ReportedAgainst | None
    """What changed since another report, or since outputs were published; null where nothing was asked for."""
