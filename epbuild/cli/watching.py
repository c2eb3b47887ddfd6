"""`epbuild run --watch`: builds, one after another, whenever a source has changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from epbuild import api
from epbuild.commands.build_result import BuildFailed
from epbuild.commands.events import FilesChanged, Watching
from epbuild.commands.request import Request
from epbuild.commands.watch import SourceWatch
from epbuild.core.errors import EpbuildError
from epbuild.engine.events import Progress


def build(request: Request, progress: Progress) -> int:
    """Build once; returns the exit code. Raises EpbuildError where nothing could be started."""
    try:
        api.run(request, progress)
    except BuildFailed as error:  # whose problems were reported
        return error.result.finished.exit_code
    return 0


def build_and_watch(watch: SourceWatch, listening: Callable[[], AbstractContextManager[Progress]], notes: Progress) -> int:
    """Build now and after every change, until Ctrl-C; returns the exit code of the last build.

    Each build has a listener of its own; `notes` shows what is waited for. Raises KeyboardInterrupt for a Ctrl-C during a build.
    """
    changed: tuple[str, ...] = ()
    while True:
        watch.begin()
        failed = None
        try:
            with listening() as progress:
                if changed:
                    progress.report(FilesChanged(changed))
                code = build(watch.request, progress)
        except EpbuildError as error:
            from epbuild.report.terminal.problems import print_count, print_problems

            print_problems(error.problems)
            print_count(error.problems)
            code, failed = error.exit_code, error
        watch.end(failed)
        try:
            notes.report(Watching(len(watch.files)))
            changed = watch.wait()
        except KeyboardInterrupt:
            return code
