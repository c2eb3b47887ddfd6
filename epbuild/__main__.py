"""The process: answer from the snapshot, else hand over to the commands, which turn what they raise into an exit code."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as type checkers read it, without the import of typing
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run `epbuild` with the arguments of the process, and exit."""
    begin = time.perf_counter()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before Python started
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    from epbuild.snapshot import answer

    arguments = sys.argv[1:]
    known = answer(arguments, lambda: time.perf_counter() - begin)
    if known is None:
        from epbuild.cli.app import execute

        _leave(execute(arguments))
    try:  # noqa: SIM105 - without the import of contextlib
        sys.stdout.write(f"{known}\n")
    except OSError:
        pass  # what goes wrong now goes wrong below as well
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End the process at once: there is nothing to tidy up, and taking Python down module by module is a tenth of a short command."""
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except BrokenPipeError:  # whoever read it has gone
            code = code or 1
        except OSError as error:
            code = code or 3
            os.write(2, f"epbuild: error: what was said could not be written: {error.strerror}\n".encode())
    os._exit(code)


if __name__ == "__main__":
    main()
