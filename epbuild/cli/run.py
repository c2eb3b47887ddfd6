"""`epbuild run`, `epbuild coverage` and `epbuild measure`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, ClassVar

from epbuild import api
from epbuild.cli import arguments
from epbuild.cli.build_files import AGAINST_NEEDS_REPORT, BuildFiles
from epbuild.cli.job_options import ShardText, parse_shard
from epbuild.cli.options import INTERRUPTED, Excludes, OptionGroup, declare_option, make_application
from epbuild.commands.reporting.recipe_values import ReportedMeasurement
from epbuild.commands.run import cover
from epbuild.commands.watch import SourceWatch
from epbuild.core.errors import EpbuildError, Problem
from epbuild.engine.events import Progress
from epbuild.report.json.build import build_coverage_document, build_measurements_document, build_plan_document
from epbuild.report.json.documents import print_json
from epbuild.report.listeners import Listener, WaitingRow
from epbuild.report.terminal.coverage import print_coverage, print_coverage_details, print_coverage_markdown
from epbuild.report.terminal.measurements import format_measurements
from epbuild.report.terminal.plan import print_plan
from epbuild.report.terminal.progress import make_coverage_reporter, make_reporter
from epbuild.report.terminal.screen import print_lines
from epbuild.session.build_result import BuildFailed
from epbuild.session.events import FilesChanged, Watching
from epbuild.session.request import Request

app = make_application()

_EXITS = {
    0: "every step is current, except for failures that the recipe allows",
    1: "a step failed, --check found a step out of date, --rebuild-and-compare found an unexpected difference, or --no-compile found a "
    "missing result",
    130: f"{INTERRUPTED}. With --watch, Ctrl-C between builds exits with the code of the last build",
}


class Execution(OptionGroup, frozen=True, kw_only=True):
    """Options that limit a build and control its reaction to failures."""

    panel: ClassVar[str] = "Execution"

    jobs: arguments.Jobs = None
    memory: Annotated[
        int | None,
        declare_option(
            "--memory",
            parser=arguments.size,
            metavar="SIZE",
            help="Maximum memory of all running actions, such as 8GB.",
            default="all memory of this machine",
        ),
    ] = None
    keep_going: Annotated[
        bool, declare_option("--keep-going", "-k", help="After a failure, continue with steps that do not depend on it.")
    ] = False


class BuildChoice(OptionGroup, frozen=True, kw_only=True):
    """Options that select the parts of a build to run or skip."""

    panel: ClassVar[str] = "Scope"

    dry_run: Annotated[bool, declare_option("--dry-run", "-n", help="Show the steps that would run, but run none.")] = False
    check: Annotated[bool, declare_option("--check", help="Run nothing; exit with 1 if a step is out of date.")] = False
    rebuild_and_compare: Annotated[
        bool,
        declare_option(
            "--rebuild-and-compare", help="After the build, compile everything again in a new folder, and compare byte for byte."
        ),
    ] = False
    no_emit: Annotated[bool, declare_option("--no-emit", help="Build results, but emit no outputs.")] = False
    push_only: Annotated[bool, declare_option("--push-only", help="Only push images, and write no folders.")] = False
    no_compile: Annotated[
        bool, declare_option("--no-compile", help="Compile nothing: emit existing results, and report missing ones.")
    ] = False
    watch: Annotated[
        bool, declare_option("--watch", help="After the build, watch the sources and build again on every change, until Ctrl-C.")
    ] = False
    shard: ShardText = None
    retry: arguments.Retry = False
    locked: arguments.Locked = False


_READ_ONLY_OPTIONS = ("--dry-run", "--check")
_RULES = (
    Excludes(("--push-only",), ("--no-emit",), "--push-only pushes outputs, but --no-emit writes none"),
    Excludes(("--rebuild-and-compare",), ("--no-compile",), "--rebuild-and-compare compiles, but --no-compile does not"),
    Excludes(
        ("--rebuild-and-compare",), _READ_ONLY_OPTIONS, "--rebuild-and-compare builds, but --dry-run and --check build nothing"
    ),
    Excludes(
        ("--junit", "--sarif", "--report", "--trace"),
        _READ_ONLY_OPTIONS,
        "--report, --trace, --junit and --sarif describe a build, but --dry-run and --check build nothing",
    ),
    Excludes(
        ("--watch",),
        (*_READ_ONLY_OPTIONS, "--rebuild-and-compare", "--push-only", "--shard"),
        "--watch cannot be combined with --dry-run, --check, --rebuild-and-compare, --push-only or --shard",
    ),
    arguments.OFFLINE_WRITES_NOTHING,
    AGAINST_NEEDS_REPORT,
)


@app.command(rules=_RULES, exits=_EXITS)
def run(
    target: arguments.Target,
    execution: Execution,
    choice: BuildChoice,
    remote: arguments.Remote,
    cluster: arguments.Cluster,
    settings: arguments.Settings,
    files: BuildFiles,
    *,
    all_warnings: arguments.AllWarnings = False,
    json: arguments.Json = False,
) -> int:
    """Build everything in RECIPE that is out of date: provision toolchains, compile, verify, and emit artifacts.

    If STEPs are named, only these steps and their dependencies are built.
    """
    request = target.request(
        settings,
        jobs=execution.jobs,
        memory=execution.memory,
        keep_going=execution.keep_going,
        rebuild_and_compare=choice.rebuild_and_compare,
        emits=not choice.no_emit and choice.shard is None,
        push_only=choice.push_only,
        compiles=not choice.no_compile,
        shard=None if choice.shard is None else parse_shard(choice.shard, os.environ),
        retry=choice.retry,
        locked=choice.locked,
        remote=remote.choice,
        cluster=cluster.address_of(remote),
    )
    files.check(request.recipe)
    if choice.dry_run or choice.check:
        return _show_plan(request, check=choice.check, all_warnings=all_warnings, json=json)

    @contextmanager
    def listening() -> Iterator[Listener]:
        shown = make_reporter(json=json, summary=files.summary, all_warnings=all_warnings)
        with files.write_after(request), files.add_documents(shown, request.recipe) as progress:
            yield progress

    if choice.watch:
        return build_and_watch(SourceWatch(request), listening, make_reporter(json=json))
    with listening() as progress:
        return _build(request, progress)


def _show_plan(request: Request, *, check: bool, all_warnings: bool, json: bool) -> int:
    """Show the steps that a build would run, and return the exit code."""
    with WaitingRow() as waiting:
        found = api.plan(request, waiting)
    if json:
        print_json(build_plan_document(str(request.recipe), found))
    else:
        print_plan(found)
    return 1 if check and not found.nothing_to_try else 0


def _build(request: Request, progress: Progress) -> int:
    """Build once, and return the exit code. Raises EpbuildError if the build could not start."""
    try:
        api.run(request, progress)
    except BuildFailed as error:  # Events have already reported the problems.
        return error.result.finished.exit_code
    return 0


def build_and_watch(watch: SourceWatch, listening: Callable[[], AbstractContextManager[Progress]], notes: Progress) -> int:
    """Build now and after every change until Ctrl-C. Return the exit code of the last build.

    `listening` opens a listener for each build. `notes` receives the number of watched files after each build. Raises
    KeyboardInterrupt for Ctrl-C during a build.
    """
    changed: tuple[str, ...] = ()
    while True:
        watch.begin()
        failed = None
        try:
            with listening() as progress:
                if changed:
                    progress.report(FilesChanged(changed))
                code = _build(watch.request, progress)
        except EpbuildError as error:
            from epbuild.report.terminal.problems import print_errors

            print_errors(error.problems)
            code, failed = error.exit_code, error
        watch.end(failed)
        try:
            notes.report(Watching(len(watch.files)))
            changed = watch.wait()
        except KeyboardInterrupt:
            return code


_COVERAGE_RULES = (
    Excludes(("--markdown",), ("--json",), "--markdown and --json cannot be combined"),
    Excludes(("--details",), ("--markdown", "--json"), "--markdown and --json have all details, so they exclude --details"),
)


@app.command(rules=_COVERAGE_RULES, exits={0: "the coverage was shown, even if models failed or do not meet `expect`"})
def coverage(
    target: arguments.Target,
    *,
    jobs: arguments.Jobs = None,
    retry: arguments.Retry = False,
    locked: arguments.Locked = False,
    remote: arguments.RemoteReading,
    settings: arguments.Settings,
    details: Annotated[
        bool, declare_option("--details", help="List size, time and accuracy of each model for each target.")
    ] = False,
    markdown: Annotated[bool, declare_option("--markdown", help="Print a Markdown table.")] = False,
    json: arguments.Json = False,
) -> int:
    """Show how much of each model in RECIPE runs on the EP of each target, and why.

    Models that are not compiled yet are compiled. A failed model does not stop the others. Nothing is emitted.
    """
    request = target.request(settings, jobs=jobs, retry=retry, locked=locked, remote=remote.choice)
    with make_coverage_reporter() as progress:
        rows = cover(request, progress)
    if json:
        print_json(build_coverage_document(rows))
    elif markdown:
        print_coverage_markdown(rows)
    elif details:
        print_coverage_details(rows)
    else:
        print_coverage(rows)
    return 0


_MEASURE_EXITS = {
    0: "every model was measured and meets its limits",
    1: "a step failed, or a figure is above its limit or missing",
}


@app.command(rules=(arguments.OFFLINE_WRITES_NOTHING,), exits=_MEASURE_EXITS)
def measure(
    target: arguments.Target,
    *,
    jobs: arguments.Jobs = None,
    retry: arguments.Retry = False,
    locked: arguments.Locked = False,
    remote: arguments.Remote,
    cluster: arguments.Cluster,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Measure the compiled models of RECIPE for which `measure` is set, and print load time, latency and memory.

    Models that are not compiled yet are compiled. Current figures are printed again, without a new measurement. A failed model does not
    stop the others. Nothing is emitted.
    """
    request = target.request(
        settings,
        jobs=jobs,
        keep_going=True,
        emits=False,
        retry=retry,
        locked=locked,
        remote=remote.choice,
        cluster=cluster.address_of(remote),
    )
    code = 0
    problems: tuple[Problem, ...] = ()
    with make_coverage_reporter() as progress:
        try:
            rows: Sequence[ReportedMeasurement] = api.measure(request, progress)
        except BuildFailed as error:
            code, problems = error.result.finished.exit_code, error.problems
            rows = api.report(request).measurements
    if json:
        print_json(build_measurements_document(rows))
    else:
        print_lines(format_measurements(rows))
    if problems:
        from epbuild.report.terminal.problems import print_errors

        print_errors(problems)
    return code
