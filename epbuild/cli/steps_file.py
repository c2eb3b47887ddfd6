"""A file of steps, as `@steps.txt` on the command line names one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from epbuild.core.errors import Argument, PlanError, Position, Problem

_COMMENT = re.compile(r"(^|\s)#.*")
_FORM = "Write one id or glob a line, in UTF-8; what follows a # is a comment."


def with_files(names: Sequence[str]) -> tuple[tuple[str, ...], Mapping[str, Position]]:
    """The ids and globs of a command line, with those of the files that it names as `@FILE`, and where in a file each is.

    Raises PlanError (EPB278) for a file that cannot be read, or names nothing: that would mean every step.
    """
    steps: dict[str, Position | None] = {}
    for name in names:
        steps |= dict(_read(name)) if name.startswith("@") else {name: None}
    return tuple(steps), {step: where for step, where in steps.items() if where is not None}


def _read(name: str) -> Iterator[tuple[str, Position]]:
    path = name[1:]
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        why = error.strerror if isinstance(error, OSError) else error
        raise PlanError(Problem("EPB278", f"the file of steps cannot be read: {why}", Argument(name), None)) from error
    found = False
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            where = Position(path, number, len(line[: error.start].decode("utf-8", "replace")) + 1)
            raise PlanError(Problem("EPB278", "the file of steps is not UTF-8", where, _FORM)) from error
        step = _COMMENT.sub("", text).strip()
        if step:
            found = True
            yield step, Position(path, number, text.index(step) + 1)
    if not found:
        raise PlanError(Problem("EPB278", "the file of steps names none", Position(path, 1, 1), _FORM))
