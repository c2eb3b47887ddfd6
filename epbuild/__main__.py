"""Entry point: the fast path if nothing has changed, or else the command line.

Ctrl-C always ends the process with a message and status 130. Before and after a command, there is nothing to undo, so the process exits
at once. A KeyboardInterrupt during an import would show a traceback or get lost.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the part of `signal` that needs no other import
import gc
import os
import sys
import time

if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):  # noqa: PTH120
    del sys.path[0]  # `python -m` adds the current folder, in which a user's `copy.py` would replace Python's

from collections.abc import Mapping, Sequence

from epbuild.core.host import is_broken_pipe, is_windows, list_interrupts

_INTERRUPTED = 130
_COLLECTION_THRESHOLD = 1_000_000
"""Number of new objects before Python collects garbage. Commands create few cycles: with the default threshold, planning 10,000 targets
spends 0.7 s of 3.0 s on collections. Library code never changes the threshold, because the collector belongs to the calling program.
"""


def main() -> None:
    """Run the command line of this process, and exit."""
    gc.set_threshold(_COLLECTION_THRESHOLD)
    _exit_on_interrupt()
    begin = time.perf_counter()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before Python started
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    if is_windows():
        _write_utf_8()
    from epbuild.survey.snapshot import try_fast_path

    arguments = sys.argv[1:]
    try:
        summary = try_fast_path(arguments, lambda: time.perf_counter() - begin, _warn)
    except OSError:  # Standard error is closed. The command line handles this case.
        summary = None
    if summary is None:
        _exit(_execute(arguments))
    try:  # noqa: SIM105 - without the import of contextlib
        sys.stdout.write(f"{summary}\n")
    except OSError:
        pass  # The flush in _exit fails as well and reports the error.
    _exit(0)


def _write_utf_8() -> None:
    """Write UTF-8 to pipes and files on Windows, as most programs do. By default, Python writes the code page of the user's language."""
    for stream in (sys.stdout, sys.stderr):
        if "PYTHONIOENCODING" not in os.environ and not stream.isatty():
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def _execute(arguments: Sequence[str]) -> int:
    from epbuild.cli.app import execute

    if is_windows():
        from epbuild.core.windows import join_job

        join_job()
    sys.unraisablehook = _repeat_interrupt
    try:
        code = execute(arguments)
        _exit_on_interrupt()
    except KeyboardInterrupt:  # Ctrl-C while the command reported its outcome
        _exit_on_interrupt()
        _print_interrupted()
        return _INTERRUPTED
    return code


def _warn(warnings: Sequence[Mapping[str, object]]) -> None:
    from epbuild.core.errors import ProblemRecord
    from epbuild.core.records import convert
    from epbuild.report.terminal.problems import print_warnings

    records = convert(warnings, tuple[ProblemRecord, ...])
    print_warnings([record.problem for record in records], all_warnings=False)


def _exit_on_interrupt() -> None:
    """Exit at once on Ctrl-C or Ctrl-Break, unless the signal is ignored: shells ignore it for background jobs."""
    for number in list_interrupts():
        if _signal.getsignal(number) is not _signal.SIG_IGN:
            _signal.signal(number, _exit_interrupted)


def _exit_interrupted(number: int, frame: object) -> None:
    _print_interrupted()
    os._exit(_INTERRUPTED)


def _print_interrupted() -> None:
    try:  # noqa: SIM105
        os.write(2, b"epbuild: interrupted; finished work is kept\n")
    except OSError:
        pass


def _repeat_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise a KeyboardInterrupt again a moment later if Python dropped the first one, as happens at the end of an import."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    import _thread
    import threading

    _signal.signal(_signal.SIGINT, _raise_interrupt)
    threading.Timer(0.01, _thread.interrupt_main).start()


def _raise_interrupt(number: int, frame: object) -> None:
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    raise KeyboardInterrupt


def _exit(code: int) -> None:
    """Flush the streams and exit without Python's shutdown, which takes 10 % of the time of a short command."""
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            if is_broken_pipe(error):
                code = code or 1
            else:
                code = code or 3
                os.write(2, f"epbuild: error: cannot write the output: {error.strerror}\n".encode())
    os._exit(code)


if __name__ == "__main__":
    main()
