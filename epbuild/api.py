"""Functions of the commands, for Python programs.

The command line calls these functions. They print nothing, set no signal handler, and may be called from any thread. They
import their modules when they are called, so that `import epbuild.api` takes about as long as `import typing`. They raise
`EpbuildError`, with a code, a location and a hint for each problem. docs/guides/python-api.md lists the stable names.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    import threading
    from collections.abc import Iterable, Iterator

    from epbuild.catalog.facts import Thresholds as Thresholds
    from epbuild.commands.artifacts import Inspected as Inspected
    from epbuild.commands.init.answers import BadAnswer as BadAnswer
    from epbuild.commands.init.answers import FirstRecipe as FirstRecipe
    from epbuild.commands.lock import Locking as Locking
    from epbuild.commands.lock import Upgrade as Upgrade
    from epbuild.commands.reporting.values import MeasuredModels as MeasuredModels
    from epbuild.commands.reporting.values import Report as Report
    from epbuild.commands.validate import Validation as Validation
    from epbuild.commands.verify import LiveOptions as LiveOptions
    from epbuild.core.errors import BuildError as BuildError
    from epbuild.core.errors import Cancelled as Cancelled
    from epbuild.core.errors import EnvironmentFailure as EnvironmentFailure
    from epbuild.core.errors import EpbuildError as EpbuildError
    from epbuild.core.errors import Misuse as Misuse
    from epbuild.core.errors import PlanError as PlanError
    from epbuild.core.errors import Position as Position
    from epbuild.core.errors import Problem as Problem
    from epbuild.core.errors import RecipeError as RecipeError
    from epbuild.core.errors import StoreError as StoreError
    from epbuild.core.errors import ToolchainError as ToolchainError
    from epbuild.core.errors import VerifyError as VerifyError
    from epbuild.engine.events import Event as Event
    from epbuild.engine.events import EventList as EventList
    from epbuild.engine.events import Progress as Progress
    from epbuild.engine.events import RunFinished as RunFinished
    from epbuild.engine.events import RunStarted as RunStarted
    from epbuild.engine.events import StepFailed as StepFailed
    from epbuild.engine.events import StepFinished as StepFinished
    from epbuild.engine.events import StepOutput as StepOutput
    from epbuild.engine.events import StepStarted as StepStarted
    from epbuild.engine.events import Warned as Warned
    from epbuild.session.build_result import BuildFailed as BuildFailed
    from epbuild.session.build_result import BuildResult as BuildResult
    from epbuild.session.coverage import CoveredModels as CoveredModels
    from epbuild.session.events import ModelCovered as ModelCovered
    from epbuild.session.events import Noted as Noted
    from epbuild.session.request import RemoteChoice as RemoteChoice
    from epbuild.session.request import Request as Request
    from epbuild.survey.status import StepStatus as StepStatus
    from epbuild.survey.status import Survey as Survey
    from epbuild.verify.findings import Finding as Finding
    from epbuild.verify.findings import Findings as Findings

    StrPath = str | os.PathLike[str]

_MODULES = {
    "epbuild.catalog.facts": ("Thresholds",),
    "epbuild.session.build_result": ("BuildFailed", "BuildResult"),
    "epbuild.session.coverage": ("CoveredModels",),
    "epbuild.session.events": ("ModelCovered", "Noted"),
    "epbuild.commands.artifacts": ("Inspected",),
    "epbuild.commands.init.answers": ("BadAnswer", "FirstRecipe"),
    "epbuild.commands.lock": ("Locking", "Upgrade"),
    "epbuild.commands.reporting.values": ("MeasuredModels", "Report"),
    "epbuild.commands.validate": ("Validation",),
    "epbuild.session.request": ("RemoteChoice", "Request"),
    "epbuild.commands.verify": ("LiveOptions",),
    "epbuild.core.errors": (
        *("BuildError", "Cancelled", "EnvironmentFailure", "EpbuildError", "Misuse", "PlanError", "Position", "Problem"),
        *("RecipeError", "StoreError", "ToolchainError", "VerifyError"),
    ),
    "epbuild.engine.events": (
        *("Event", "EventList", "Progress", "RunFinished", "RunStarted"),
        *("StepFailed", "StepFinished", "StepOutput", "StepStarted", "Warned"),
    ),
    "epbuild.survey.status": ("StepStatus", "Survey"),
    "epbuild.verify.findings": ("Finding", "Findings"),
}
"""Names that this module re-exports, by the module that defines them. `__getattr__` imports this module on the first use."""


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for every Ctrl-C, and Cancelled if the build ended because its caller canceled it."""
    from epbuild.core.errors import Cancelled
    from epbuild.core.host import is_interrupt

    try:
        yield
    except KeyboardInterrupt as error:
        if isinstance(error.__cause__, Cancelled):  # A KeyboardInterrupt by Ctrl-C has no cause.
            raise error.__cause__ from None
        raise
    except RuntimeError as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise


@_interruptible()
def validate(request: Request | StrPath) -> Validation:
    """Check a recipe and its models without building. Raises EpbuildError with all mistakes if the recipe is invalid."""
    from epbuild.commands.validate import validate as check

    return check(_as_request(request))


@_interruptible()
def plan(request: Request | StrPath, progress: Progress | None = None) -> Survey:
    """Return the state of every step of a recipe, with the reasons to run it. Builds nothing. Raises EpbuildError.

    If hashing files takes longer than a second, `progress` receives events about it. Events come from any thread, one at a
    time.
    """
    from epbuild.commands.plan import survey

    return survey(_as_request(request), progress=progress)


@_interruptible()
def run(request: Request | StrPath, progress: Progress | None = None, *, cancelled: threading.Event | None = None) -> BuildResult:
    """Build the out-of-date steps, and return the result. `progress` receives every event, from any thread, one at a time.

    Raises BuildFailed if steps failed, and another EpbuildError if the build could not start. Raises Cancelled after
    `cancelled` is set, and KeyboardInterrupt on Ctrl-C. Finished results are always kept.
    """
    from epbuild.commands.run import run as build
    from epbuild.engine.events import NoProgress
    from epbuild.session.build_result import ResultCollector

    collector = ResultCollector(NoProgress() if progress is None else progress)
    build(_as_request(request), collector, cancelled)
    return collector.result()


@_interruptible()
def coverage(
    request: Request | StrPath, progress: Progress | None = None, *, cancelled: threading.Event | None = None
) -> CoveredModels:
    """Compile out-of-date models without emitting outputs, and return the coverage of each model for each target.

    A failed model does not stop the others. Raises an EpbuildError if the build could not start, and Cancelled after `cancelled` is
    set.
    """
    from epbuild.commands.run import cover
    from epbuild.engine.events import NoProgress

    return cover(_as_request(request), NoProgress() if progress is None else progress, cancelled)


@_interruptible()
def measure(
    request: Request | StrPath, progress: Progress | None = None, *, cancelled: threading.Event | None = None
) -> MeasuredModels:
    """Measure the compiled models for which the recipe sets `measure`, without emitting outputs, and return new and current figures.

    A failed model does not stop the others. Raises BuildFailed at the end if a model failed or exceeds a limit: `report` then has the
    figures of all models. Raises another EpbuildError if the build could not start, and Cancelled after `cancelled` is set.
    """
    from epbuild.commands.run import measure as measure_models
    from epbuild.engine.events import NoProgress

    return measure_models(_as_request(request), NoProgress() if progress is None else progress, cancelled)


@_interruptible()
def report(request: Request | StrPath, progress: Progress | None = None) -> Report:
    """Return the coverage, sizes, times and accuracy of a recipe's builds, and its last build. Builds nothing. Raises EpbuildError."""
    from epbuild.commands.reporting.report import report as make_report

    return make_report(_as_request(request), progress)


@_interruptible()
def verify(path: StrPath, live: LiveOptions | None = None, progress: Progress | None = None) -> Findings:
    """Check all artifacts at a path, and return the findings. With `live`, also load the compiled models.

    If `live` requests it, the models are run and their outputs are compared. `progress` receives `Noted` events about slow
    work, and events about hashing if it takes longer than a second. Raises Misuse if `live` does not fit the artifacts, and
    EpbuildError if the path has nothing to verify. A damaged artifact is a finding, not an error.
    """
    from pathlib import Path

    from epbuild.commands.verify import verify as check
    from epbuild.engine.events import NoProgress
    from epbuild.verify.findings import Findings

    return Findings(check(Path(path), live, NoProgress() if progress is None else progress))


@_interruptible()
def inspect(*files: StrPath) -> Inspected:
    """Return the contents of ONNX files. A folder stands for its ONNX files. Raises VerifyError for an unreadable or invalid model."""
    from pathlib import Path

    from epbuild.commands.artifacts import inspect as inspect_files

    return inspect_files([Path(file) for file in files])


@_interruptible()
def init(
    *models: StrPath,
    ep: str,
    targets: Iterable[str] = (),
    sizes: Iterable[str] = (),
    share_weights: bool | None = None,
    name: str | None = None,
    output: StrPath = "epbuild.yaml",
    force: bool = False,
) -> FirstRecipe:
    """Write a short recipe for models, or for the models of a folder, and return what it contains.

    The parameters have the formats of the options of `epbuild init`. The sizes of other open dimensions are guessed. Raises BadAnswer
    for an invalid argument, and EpbuildError if the recipe cannot be planned.
    """
    import os
    from pathlib import Path

    from epbuild.commands.init.answers import BadAnswer, Given, write_first_recipe
    from epbuild.commands.init.choices import list_starter_kinds

    if ep not in list_starter_kinds():
        raise BadAnswer(f"invalid ep '{ep}': expected one of {', '.join(list_starter_kinds())}")
    places = [os.fspath(model) for model in models]
    given = Given(places, (), tuple(sizes), list_starter_kinds()[ep], tuple(targets), share_weights, name, Path(output), force)
    return write_first_recipe(given, None)


@_interruptible()
def lock(
    request: Request | StrPath, progress: Progress | None = None, *, upgrade: Upgrade | None = None, check: bool = False
) -> Locking:
    """Write epbuild.lock beside the recipe, and return the lock with its changes. With `check`, write nothing.

    Existing entries are kept as long as the recipe allows them, except for the packages in `upgrade`. Raises EpbuildError.
    """
    from msgspec.structs import replace

    from epbuild.commands.lock import make_lock, write_lock
    from epbuild.engine.events import NoProgress

    locking = make_lock(_as_request(request), NoProgress() if progress is None else progress, upgrade)
    if check:
        return locking
    write_lock(locking)
    return replace(locking, is_written=True)


def _as_request(request: Request | StrPath) -> Request:
    from pathlib import Path

    from epbuild.session.request import Request

    return request if isinstance(request, Request) else Request(Path(request))


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(importlib.import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for names in _MODULES.values() for name in names)})
