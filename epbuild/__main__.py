"""Entry point: the fast path if nothing changed, else the command line.

Ctrl-C always ends the process with a message and status 130. Before and after a command there is nothing to undo, so the process exits
at once: a KeyboardInterrupt during an import would show a traceback or get lost.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the part of `signal` that needs no other import
import gc
import os
import sys
import time

TYPE_CHECKING = False  # as type checkers read it, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType
    from typing import Any, NoReturn

_INTERRUPTED = 130
_COLLECTION_THRESHOLD = 1_000_000
"""New objects before Python collects garbage. Commands create few cycles: with Python's own threshold, planning 10,000 targets spends 0.7 s
of 3.0 s on collections. This is the command line's own process; library code never touches the collector, which is its host's.
"""


def main() -> NoReturn:
    """Run `epbuild` with the arguments of the process, and exit."""
    gc.set_threshold(_COLLECTION_THRESHOLD)
    _exit_on_interrupt()
    begin = time.perf_counter()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before Python started
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    from epbuild.survey.snapshot import answer

    arguments = sys.argv[1:]
    try:
        summary = answer(arguments, lambda: time.perf_counter() - begin, _warn)
    except OSError:  # the reader of the warnings has gone: the command line handles that
        summary = None
    if summary is None:
        _exit(_execute(arguments))
    try:  # noqa: SIM105 - without the import of contextlib
        sys.stdout.write(f"{summary}\n")
    except OSError:
        pass  # the flush in _exit fails too, and is reported there
    _exit(0)


def _execute(arguments: Sequence[str]) -> int:
    from epbuild.cli.app import execute

    sys.unraisablehook = _repeat_interrupt
    try:
        code = execute(arguments)
        _exit_on_interrupt()
    except KeyboardInterrupt:  # while the outcome was reported
        _exit_on_interrupt()
        _print_interrupted()
        return _INTERRUPTED
    return code


def _warn(warnings: Sequence[Mapping[str, Any]]) -> None:
    from epbuild.core.errors import ProblemRecord
    from epbuild.core.records import convert
    from epbuild.report.terminal.problems import print_warnings

    records = convert(warnings, tuple[ProblemRecord, ...])
    print_warnings([record.problem for record in records], all_warnings=False)


def _exit_on_interrupt() -> None:
    """Exit at once on Ctrl-C, unless the signal is ignored: shells ignore it for background jobs."""
    if _signal.getsignal(_signal.SIGINT) is not _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _exit_interrupted)


def _exit_interrupted(number: int, frame: FrameType | None) -> None:
    _print_interrupted()
    os._exit(_INTERRUPTED)


def _print_interrupted() -> None:
    try:  # noqa: SIM105
        os.write(2, b"epbuild: interrupted; finished work is kept\n")
    except OSError:
        pass


def _repeat_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise an interrupt again a moment later if Python dropped it, as it does at the end of an import."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    import _thread
    import threading

    _signal.signal(_signal.SIGINT, _raise_interrupt)
    threading.Timer(0.01, _thread.interrupt_main).start()


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    raise KeyboardInterrupt


def _exit(code: int) -> NoReturn:
    """Flush the streams and exit without Python's shutdown, which takes a tenth of a short command. Nothing is left to clean up."""
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except BrokenPipeError:  # the reader has gone
            code = code or 1
        except OSError as error:
            code = code or 3
            os.write(2, f"epbuild: error: cannot write the output: {error.strerror}\n".encode())
    os._exit(code)


if __name__ == "__main__":
    main()
