"""Fast path: nothing to do, by the stat of all files of the last build.

Nothing is imported before that is recognised.

A run that found nothing to do leaves a snapshot in its workspace: what it was asked, which epbuild and Python answered, the variables of
the environment that it read, and the size, times and inode of every file that its answer came from, its outputs among them. Files are
looked at by the very names that the system was asked for, and every link on the way to them has to lead where it led. As long as all of
that is so, the answer still holds. Whatever else is the case, a snapshot has no answer, and all of epbuild looks for itself.

It never trusts a file that was touched when the run that took it had begun, or too shortly before for file systems to show: such
a file may have changed after it was looked at. No snapshot is taken then; the next run that finds nothing to do will take it.
What time it is when a run begins is asked of the workspace's file system, as a server's clock may differ from this machine's.
"""

from __future__ import annotations

import marshal
import os
import sys

from epbuild import __version__
from epbuild.core import changetime
from epbuild.core.changetime import changed_ns
from epbuild.core.defaults import DEFAULT_RECIPE, WORKSPACE
from epbuild.core.host import cpu_name

TYPE_CHECKING = False  # as type checkers read it, without the import that would take longer than what is done here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    PlainProblem = tuple[Any, ...]
    """A problem as `Problem.plain` has it: no class is needed to read it."""

FORMAT = 4

# The coarsest timestamps in use (FAT's) are two seconds apart: within that, two writes can leave the same stat. Where a file's ctime is no
# multiple of 10 ms, which is as fine as FAT gets, timestamps are as fine as the kernel's clock, which ticks every 10 ms or more often.
_COARSE_STEP_NS = 2_000_000_000
_FINE_STEP_NS = 100_000_000
_FINE_UNIT_NS = 10_000_000

_LENGTH = 8  # bytes of the number that holds the length of a snapshot's head
_PART = 4000  # files; read and compared at once

_SEPARATORS = "/\\"
_GLOB = frozenset("*?[")
# What decides where the store, the toolchains and the Python packages with models are.
_PLACES = ("EPBUILD_CACHE_DIR", "EPBUILD_TOOLCHAIN_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE", "PYTHONPATH")


def nothing_to_do(steps: int) -> str:
    """That all of so many steps are up to date."""
    return "Nothing to do: " + ("1 step is" if steps == 1 else f"{steps} steps are") + " up to date"


def recipe_and_steps(names: Sequence[str], recipe: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The recipe, and the ids or globs of steps, of a command that is given `names`; `recipe` is that of its `--recipe`.

    The first name is a recipe unless it can only be a step: it has a `:` before any separator, as in `emit:decoder/npu/directory`, or it
    is a glob. One letter before a `:` is a drive (`C:`).
    """
    if recipe is not None:
        return recipe, tuple(names)
    if not names or _is_step(names[0]):
        return DEFAULT_RECIPE, tuple(names)
    return names[0], tuple(names[1:])


def _is_step(name: str) -> bool:
    if not _GLOB.isdisjoint(name):
        return True
    colon = name.find(":")
    before = name[: max(colon, 0)]
    is_drive = len(before) == 1 and before.isalpha()
    return colon >= 0 and not is_drive and not any(separator in before for separator in _SEPARATORS)


def answer(
    arguments: Sequence[str], seconds: Callable[[], float], warn: Callable[[Sequence[PlainProblem]], object] | None = None
) -> str | None:
    """The line to print for a command line that is done with that, since its snapshot still holds; None if there is any doubt.

    `seconds` gives how long it has taken, `warn` gets the warnings of the run that took the snapshot, which a run gives again.
    """
    asked = _read_run(arguments)
    if asked is None:
        return None
    recipe, check, locked, request = asked
    if not check and os.environ.get("GITHUB_STEP_SUMMARY"):  # which a run appends tables to, even of nothing
        return None
    try:
        known = _confirm(recipe, request, locked=locked)
    except (OSError, ValueError, EOFError, TypeError):
        return None
    if known is None:
        return None
    steps, warnings = known
    if warnings and warn is not None and not check:
        warn(warnings)
    return f"{nothing_to_do(steps)}." if check else f"{nothing_to_do(steps)} ({seconds():.2f} s)"


def clock(recipe: Path) -> tuple[int, int] | None:
    """The time in nanoseconds by the clock of the file system that the recipe's workspace is on, and that file system's device.

    None where there is no workspace yet, or none that may be written to.
    """
    place = os.path.join(os.path.dirname(_place(str(recipe))), "clock")  # noqa: PTH118, PTH120
    try:
        with open(place, "ab"):  # noqa: PTH123
            os.utime(place)
        seen = os.stat(place)  # noqa: PTH116
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_dev


class SnapshotInputs:
    """What an answer came from: files and folders, those that would have changed it and are not there, variables that were read."""

    def __init__(
        self, files: Iterable[Path], environment: Mapping[str, str | None], absent: Iterable[Path] = ()
    ) -> None:  # no dataclass: its import takes longer than what is done here
        self.files = files
        self.environment = environment
        self.absent = absent


def take(
    recipe: Path,
    request: tuple[tuple[str, ...], tuple[str, ...]],
    inputs: SnapshotInputs,
    *,
    steps: int,
    began: tuple[int, int],
    locked: bool = False,
    warnings: Sequence[PlainProblem] = (),
) -> None:
    """Leave a snapshot of a run that began when `clock` gave `began`, and found that all of so many `steps` are up to date.

    `request` is the selection and the settings. If everything was as in a lock (`locked`), this is the answer with `--locked` as well.
    `warnings` are what the run warned of; as they name files the way the recipe was named, they are for who names it so. Where a file is
    too fresh to be trusted, or the snapshot cannot be written, there is none: it only saves time.
    """
    place = _place(str(recipe))
    began_ns, device = began
    # A shorter way to a file is a faster one: names below the recipe's folder are looked up from there.
    below = os.path.join(os.path.dirname(_absolute(str(recipe))), "")  # noqa: PTH118, PTH120
    paths = dict.fromkeys(_absolute(str(file)) for file in inputs.files)
    missing = [_absolute(str(file)) for file in inputs.absent]
    from pathlib import Path

    from epbuild.core.atomic import write_file
    from epbuild.core.safepath import links_on_the_way

    # Before the files: a link that is changed meanwhile is no more what it was.
    links = tuple((link.removeprefix(below), target) for link, target in links_on_the_way([*paths, *missing]).items())
    entries = []
    for path in paths:
        try:
            seen = os.stat(path)  # noqa: PTH116
        except OSError:
            return
        ctime_ns = changed_ns(path, seen)
        fine = seen.st_dev == device and ctime_ns % _FINE_UNIT_NS
        if max(seen.st_mtime_ns, ctime_ns) >= began_ns - (_FINE_STEP_NS if fine else _COARSE_STEP_NS):
            return
        entries.append((path.removeprefix(below), seen.st_size, seen.st_mtime_ns, ctime_ns, seen.st_ino))
    if any(map(os.path.lexists, missing)):
        return
    gone = tuple(path.removeprefix(below) for path in missing)
    read = {name: _digest(value) for name, value in inputs.environment.items()} | {name: os.environ.get(name) for name in _PLACES}
    parts = [marshal.dumps(entries[start : start + _PART]) for start in range(0, len(entries), _PART)]
    sizes = [len(part) for part in parts]
    warned = (_view(str(recipe)), tuple(warnings)) if warnings else None
    facts = (_identity(place), request, tuple(sorted(read.items())), steps, gone, links, locked, warned, sizes)
    head = marshal.dumps(facts)
    try:
        # For its owner alone: the digest of a short secret reveals it to all who can try every one.
        write_file(Path(place), b"".join([len(head).to_bytes(_LENGTH, "big"), head, *parts]), durable=False, mode=0o600)
    except OSError:
        return


def forget(recipe: Path) -> None:
    """Have the next run look for itself. Where the snapshot cannot be removed it stays: its answer is no less right."""
    try:
        os.unlink(_place(str(recipe)))  # noqa: PTH108
    except OSError:
        return


def own_files() -> list[str]:
    """The files of epbuild itself: another epbuild may answer differently."""
    folder = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120
    schemas = os.path.join(os.path.dirname(folder), "schemas")  # noqa: PTH118, PTH120
    return [
        os.path.join(root, name)  # noqa: PTH118
        for top in (folder, schemas)
        for root, _, names in os.walk(top)
        for name in names
        if name.endswith((".py", ".toml", ".json"))
    ]


def _confirm(
    recipe: str, request: tuple[tuple[str, ...], tuple[str, ...]], *, locked: bool
) -> tuple[int, Sequence[PlainProblem]] | None:
    """The number of steps that are up to date, and what to warn of, if the recipe's snapshot is of this request and nothing has changed."""
    place = _place(recipe)
    with open(place, "rb") as file:  # noqa: PTH123
        data = memoryview(file.read())
    begin = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
    facts = marshal.loads(data[_LENGTH:begin])  # noqa: S302 - as trusted as the program
    identity, asked, environment, steps, gone, links, is_locked, warned, sizes = facts
    view, warnings = warned or (None, ())
    if identity != _identity(place) or asked != request:
        return None
    if warnings and view != _view(recipe):
        return None
    if (locked and not is_locked) or any(not _is_so(name, value) for name, value in environment):
        return None
    parts = []
    for size in sizes:
        parts.append(data[begin : begin + size])
        begin += size
    before = os.getcwd()  # noqa: PTH109
    os.chdir(os.path.dirname(recipe) or ".")  # noqa: PTH120
    try:
        if any(map(os.path.lexists, gone)) or any(os.readlink(link) != target for link, target in links):  # noqa: PTH115
            return None
        return (int(steps), warnings) if _are_unchanged(parts) else None
    finally:
        os.chdir(before)


def _are_unchanged(parts: list[memoryview]) -> bool:
    """Whether every file is as it was, as seen from the recipe's folder.

    Where the system can fork, each CPU looks at some of the parts: 30,000 files take 40 ms instead of 70 on two.
    """
    count = min(os.cpu_count() or 1, len(parts)) if hasattr(os, "fork") else 1
    shares = [parts[number::count] for number in range(count)]
    children = []
    while len(shares) > 1:
        try:
            child = os.fork()
        except OSError:  # no more processes here: then this one looks at the rest
            break
        if not child:
            code = 1
            try:
                code = 0 if all(map(_is_unchanged, shares[-1])) else 1
            finally:
                os._exit(code)
        children.append(child)
        shares.pop()
    same = all(_is_unchanged(part) for share in shares for part in share)
    for child in children:
        same = os.waitpid(child, 0)[1] == 0 and same
    return same


def _is_unchanged(part: memoryview) -> bool:
    stat, windows = os.stat, changetime.WINDOWS
    try:
        for path, size, mtime_ns, ctime_ns, inode in marshal.loads(part):  # noqa: S302
            seen = stat(path)
            if seen.st_mtime_ns != mtime_ns or seen.st_size != size or seen.st_ino != inode:
                return False
            if (changed_ns(path, seen) if windows else seen.st_ctime_ns) != ctime_ns:  # a call takes longer than to compare
                return False
    except (OSError, ValueError, EOFError, TypeError):
        return False
    return True


def _digest(value: str | None) -> str | None:
    """What is kept of a variable that the recipe reads, which may be a secret."""
    from hashlib import sha256  # few recipes read any

    return None if value is None else sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def _is_so(name: str, known: str | None) -> bool:
    """Whether a variable of the environment is what it was: one of `_PLACES`, or one that the recipe reads, by its digest."""
    value = os.environ.get(name)
    return (value if name in _PLACES else _digest(value)) == known


def _identity(place: str) -> tuple[Any, ...]:
    """Who answers, and where: a workspace that was copied or moved has to be looked at anew."""
    return (FORMAT, __version__, sys.version, cpu_name(), os.path.realpath(place))


def _view(recipe: str) -> tuple[str, str]:
    """What decides how the files beside a recipe are called in messages."""
    return os.path.normcase(recipe), os.getcwd()  # noqa: PTH109


def _absolute(path: str) -> str:
    """The path from the root: not shortened, as `link/..` is the folder above the one that the link leads to."""
    return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118


def _place(recipe: str) -> str:
    folder, name = os.path.split(recipe)
    return os.path.join(folder, WORKSPACE, f"snapshot-{name}")  # noqa: PTH118


def _read_run(arguments: Sequence[str]) -> tuple[str, bool, bool, tuple[tuple[str, ...], tuple[str, ...]]] | None:
    """The recipe, whether to check only, whether `--locked`, and what was asked, of a `run` whose arguments are all plain; else None."""
    if not arguments or arguments[0] != "run":
        return None
    names: list[str] = []
    settings: list[str] = []
    check = locked = False
    recipe: str | None = None
    following = iter(arguments[1:])
    for argument in following:
        name, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            names.append(argument)
        elif argument in ("-k", "--keep-going"):
            pass
        elif argument == "--check":
            check = True
        elif argument == "--locked":
            locked = True
        elif argument == "-r" or name == "--recipe":
            recipe = value if equals else next(following, "")
        elif name == "--set":
            settings.append(value if equals else next(following, ""))
        elif argument in ("-j", "--jobs") and _counts(next(following, "")):
            pass
        else:
            return None
    if not all(names) or not all(settings) or recipe == "":
        return None
    found, steps = recipe_and_steps(names, recipe)
    return found, check, locked, (steps, tuple(settings))


def _counts(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0
