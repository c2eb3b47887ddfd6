"""`epbuild run`: build what is out of date."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated

from epbuild import api
from epbuild.cli import arguments
from epbuild.cli.build_files import AGAINST_NEEDS_REPORT, BuildFiles
from epbuild.cli.job_options import ShardText, shard_of
from epbuild.cli.options import Excludes, OptionGroup, application, option
from epbuild.commands.watch import SourceWatch
from epbuild.core.errors import EpbuildError
from epbuild.engine.events import Progress
from epbuild.report.json.build import plan_document
from epbuild.report.json.documents import print_json
from epbuild.report.listeners import Listener, WaitingRow
from epbuild.report.terminal.plan import print_plan
from epbuild.report.terminal.progress import reporter
from epbuild.session.build_result import BuildFailed
from epbuild.session.events import FilesChanged, Watching
from epbuild.session.request import Request

app = application()

_EXIT_CODES = """\b
Exit codes:
  0    everything is in place, but for what is allowed to fail
  1    a step failed, --check found something out of date, or
       --rebuild-and-compare a difference that is not known, or
       --no-compile a result that is not there
  2    the recipe or the command line is wrong
  3    the environment is: toolchain, device, permissions, disk
  130  interrupted; what was finished is kept. With --watch, Ctrl-C
       between builds ends with the code of the last build
"""


class Execution(OptionGroup, frozen=True, kw_only=True):
    """Limits of a build, and its reaction to failures."""

    jobs: arguments.Jobs = None
    memory: Annotated[
        int | None,
        option(
            "--memory",
            parser=arguments.size,
            metavar="SIZE",
            help="How much memory may be used at once, such as 8GB; default: all there is.",
        ),
    ] = None
    keep_going: Annotated[bool, option("--keep-going", "-k", help="After a failure, go on with what does not depend on it.")] = (
        False
    )


class BuildChoice(OptionGroup, frozen=True, kw_only=True):
    """Parts of a build to run or to skip."""

    dry_run: Annotated[bool, option("--dry-run", "-n", help="Show what would be made, and make nothing.")] = False
    check: Annotated[bool, option("--check", help="Make nothing; exit with 1 if anything is out of date.")] = False
    rebuild_and_compare: Annotated[
        bool, option("--rebuild-and-compare", help="Then compile everything again in a fresh place, and compare the bytes.")
    ] = False
    no_emit: Annotated[bool, option("--no-emit", help="Make results and write no output.")] = False
    push_only: Annotated[
        bool, option("--push-only", help="Only push images, each file from where it is, and write no folder.")
    ] = False
    no_compile: Annotated[
        bool, option("--no-compile", help="Make no result: emit those that are there, and name those that are not.")
    ] = False
    watch: Annotated[bool, option("--watch", help="Then build again whenever a source changes, until Ctrl-C.")] = False
    shard: ShardText = None
    retry: arguments.Retry = False
    locked: arguments.Locked = False


_LOOKS = ("--dry-run", "--check")
_RULES = (
    Excludes(("--push-only",), ("--no-emit",), "--push-only pushes outputs; --no-emit makes none"),
    Excludes(("--rebuild-and-compare",), ("--no-compile",), "--rebuild-and-compare compiles; --no-compile does not"),
    Excludes(("--rebuild-and-compare",), _LOOKS, "--rebuild-and-compare builds; --dry-run and --check build nothing"),
    Excludes(
        ("--junit", "--sarif", "--report", "--trace"),
        _LOOKS,
        "--report, --trace, --junit and --sarif are about a build; --dry-run and --check build nothing",
    ),
    Excludes(
        ("--watch",),
        (*_LOOKS, "--rebuild-and-compare", "--push-only", "--shard"),
        "--watch builds again and again; --dry-run, --check, --rebuild-and-compare, --push-only and --shard do not",
    ),
    arguments.OFFLINE_WRITES_NOTHING,
    AGAINST_NEEDS_REPORT,
)


@app.command(epilog=_EXIT_CODES, rules=_RULES)
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
    """Build what is out of date in RECIPE: provision toolchains, compile, verify, emit the artifacts.

    Of STEPs that are named, what they need is built as well.
    """
    selection = target.selection()
    files.check(selection.recipe)
    request = Request(
        recipe=selection.recipe,
        selection=selection.steps,
        places=selection.places,
        settings=tuple(settings),
        jobs=execution.jobs or os.cpu_count() or 1,
        memory=execution.memory,
        keep_going=execution.keep_going,
        rebuild_and_compare=choice.rebuild_and_compare,
        emits=not choice.no_emit and choice.shard is None,
        push_only=choice.push_only,
        compiles=not choice.no_compile,
        shard=None if choice.shard is None else shard_of(choice.shard, os.environ),
        retry=choice.retry,
        locked=choice.locked,
        remote=remote.choice,
        cluster=None if remote.offline else cluster.address(insecure=remote.insecure),
    )
    if choice.dry_run or choice.check:
        return _show_plan(request, check=choice.check, all_warnings=all_warnings, json=json)

    @contextmanager
    def listening() -> Iterator[Listener]:
        shown = reporter(json=json, summary=files.summary, all_warnings=all_warnings)
        with files.written_after(request), files.add_documents(shown, request.recipe) as progress:
            yield progress

    if choice.watch:
        return build_and_watch(SourceWatch(request), listening, reporter(json=json))
    with listening() as progress:
        return _build(request, progress)


def _show_plan(request: Request, *, check: bool, all_warnings: bool, json: bool) -> int:
    """Show what a build would do; return the exit code."""
    with WaitingRow() as waiting:
        found = api.plan(request, waiting)
    if json:
        print_json(plan_document(str(request.recipe), found))
    else:
        print_plan(found, only_todo=True)
    return 1 if check and not found.nothing_to_try else 0


def _build(request: Request, progress: Progress) -> int:
    """Build once; return the exit code. Raises EpbuildError if nothing could be started."""
    try:
        api.run(request, progress)
    except BuildFailed as error:  # its problems have been reported
        return error.result.finished.exit_code
    return 0


def build_and_watch(watch: SourceWatch, listening: Callable[[], AbstractContextManager[Progress]], notes: Progress) -> int:
    """Build now and after every change, until Ctrl-C; return the exit code of the last build.

    Each build has a listener of its own. `notes` shows how many files are watched. Raises KeyboardInterrupt for a Ctrl-C during a build.
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
