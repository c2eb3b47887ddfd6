"""The process: an answer from the snapshot, else the command line.

Whenever Ctrl-C comes, the process ends with 130 and a sentence. Before and after the commands there is nothing to undo, and it ends at
once: an exception would be a traceback out of an import that is half done, or lost in one.
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
    _end_when_interrupted()
    begin = time.perf_counter()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before Python started
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    from epbuild.survey.snapshot import answer

    arguments = sys.argv[1:]
    try:
        known = answer(arguments, lambda: time.perf_counter() - begin, _warn)
    except OSError:  # the reader of the warnings has gone: the commands deal with that
        known = None
    if known is None:
        _leave(_execute(arguments))
    try:  # noqa: SIM105 - without the import of contextlib
        sys.stdout.write(f"{known}\n")
    except OSError:
        pass  # what goes wrong now goes wrong below as well
    _leave(0)


def _execute(arguments: Sequence[str]) -> int:
    from epbuild.cli.app import execute

    sys.unraisablehook = _interrupt_again
    try:
        code = execute(arguments)
        _end_when_interrupted()
    except KeyboardInterrupt:  # while it was shown how that ended
        _end_when_interrupted()
        _say_interrupted()
        return _INTERRUPTED
    return code


def _warn(warnings: Sequence[Mapping[str, Any]]) -> None:
    from epbuild.core.errors import ProblemRecord
    from epbuild.core.records import convert
    from epbuild.report.terminal.problems import print_warnings

    records = convert(warnings, tuple[ProblemRecord, ...])
    print_warnings([record.problem for record in records], all_warnings=False)


def _end_when_interrupted() -> None:
    """Have Ctrl-C end the process at once; where it is ignored, as by a shell for what runs in the background, it stays so."""
    if _signal.getsignal(_signal.SIGINT) is not _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _end)


def _end(number: int, frame: FrameType | None) -> None:
    _say_interrupted()
    os._exit(_INTERRUPTED)


def _say_interrupted() -> None:
    try:  # noqa: SIM105
        os.write(2, b"epbuild: interrupted; what was finished is kept\n")
    except OSError:
        pass


def _interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Have an interrupt that came where Python drops exceptions, such as in the end of an import, come again a moment later."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    import _thread
    import threading

    _signal.signal(_signal.SIGINT, _interrupt_once)
    threading.Timer(0.01, _thread.interrupt_main).start()


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    raise KeyboardInterrupt


def _leave(code: int) -> NoReturn:
    """End the process at once: there is nothing to clean up, and taking Python down module by module is a tenth of a short command."""
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except BrokenPipeError:  # its reader has gone
            code = code or 1
        except OSError as error:
            code = code or 3
            os.write(2, f"epbuild: error: what was to be shown could not be written: {error.strerror}\n".encode())
    os._exit(code)


if __name__ == "__main__":
    main()
