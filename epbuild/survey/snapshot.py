"""Snapshot of a run: its steps, and stats of all files that they depend on.

A snapshot shows whether anything has changed since the run. If nothing has changed, `try_fast_path` reports that there is nothing to do,
before other modules are imported. If anything has changed, the caller reads, plans and surveys the whole recipe.

Snapshots are in the user's cache. There is one snapshot for each combination of a recipe, settings and selected steps. The cache is trusted
like the program itself. Files are compared by `lstat`, so that a link or a pipe in place of a file is a change. The digest of a file is
compared if only its times differ, or if the file was too new for its times to show a change. A snapshot is ignored if it is damaged, or if
it is from another epbuild, Python, CPU, workspace or environment.
"""

from __future__ import annotations

import marshal
import os
import sys
from stat import S_ISREG

from epbuild import __version__
from epbuild.core.defaults import CACHE_VARIABLES, DEFAULT_RECIPE, WORKSPACE, find_cache_root
from epbuild.core.host import count_cpus, get_change_time_ns, is_windows, read_cpu_name, read_driver_version
from epbuild.core.own_files import read_own, write_own

TYPE_CHECKING = False  # type checkers assume True; importing typing takes longer than an answer
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    Stat = tuple[str, int, int, int, int]
    """Absolute path, size, mtime and ctime in nanoseconds, and inode of a file."""
    Moment = tuple[int, int]
    """Time in nanoseconds by the clock of a file system, and the device of the file system."""

FORMAT = 13

# FAT has the coarsest timestamps. Two writes within two seconds can result in the same stat. The finest timestamps of FAT are multiples of
# 10 ms. If a ctime is not a multiple of 10 ms, the file system's timestamps have the resolution of the kernel's clock, which ticks at least
# every 10 ms.
_COARSE_STEP_NS = 2_000_000_000
_FINE_STEP_NS = 100_000_000
_FINE_UNIT_NS = 10_000_000

# A checkout may contain a link or a pipe at the path of the clock file.
_CLOCK = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

_BLOCK_BYTES = 1 << 20
_MAX_HASHED_BYTES = 128 << 20
"""Maximum total size of touched files that the fast path hashes. The full command hashes larger files and shows the progress."""

_FOLDER = "looks"
_FLAGS = frozenset({"--check", "--locked"})
"""Flags of `run` that `try_fast_path` supports without parsing the command line."""

# These variables determine the folders of the store, the toolchains and the Python packages with models.
_PLACES = (*CACHE_VARIABLES, "EPBUILD_TOOLCHAIN_DIR", "PYTHONPATH")

UNREADABLE = (OSError, ValueError, EOFError, TypeError, LookupError, AttributeError)
"""Errors of an unreadable or damaged snapshot."""


class Snapshot:
    """Content of a snapshot. Not a dataclass, because importing `dataclasses` takes longer than the fast path."""

    identity: tuple[Any, ...]
    """Values that identify the program, the machine and the workspace, from `describe_identity`."""
    environment: Sequence[tuple[str, str | None]]
    """Variables that were read, with digests of their values, and the variables in `_PLACES`, with their plain values."""
    absent: Sequence[str]
    """Files that did not exist. The status of steps would change if one of these files existed."""
    links: Sequence[tuple[str, str]]
    """Symbolic links in the paths of the files, with their targets."""
    view: tuple[str, str]
    """Values that determine how messages name files, from `describe_view`."""
    drivers: Sequence[tuple[Any, str]]
    """Drivers that an EP's output may depend on, with their versions. A driver is a tuple of arguments for `read_driver_version`."""
    lock: str
    """`held` if everything matched the recipe's lock, `doubted` if anything differed, `none` if there is no lock."""
    warnings: Sequence[Mapping[str, Any]]
    """Warnings as mappings with the fields of `ProblemRecord`. The class is imported only if there are warnings."""
    defaults: Mapping[str, Any]
    """`Defaults` of the recipe as a mapping."""
    name: str
    """Name of the recipe."""
    count: int
    """Number of steps."""
    is_current: bool
    """True if all steps were current. Otherwise, the snapshot is used only to watch the files."""
    fresh: Sequence[int]
    """Indexes in `files` of the files whose times could not be trusted."""
    files: list[Stat]
    digests: bytes
    """Marshaled list of the SHA-256 of each file, empty if unknown. The list is parsed only if files were touched."""
    steps: bytes
    """Marshaled list of `(id, kind, needs, action, key, outputs, runs on a real device)`."""

    def __init__(self, **content: Any) -> None:
        """Store the content. Raises ValueError if a field is missing or unknown."""
        if content.keys() != Snapshot.__annotations__.keys():
            raise ValueError(content.keys())
        vars(self).update(content)

    def has_same_surroundings(self, recipe: str) -> bool:
        """Return whether program, machine, workspace, environment and links are unchanged. Raises OSError."""
        return (
            self.identity == describe_identity(recipe)
            and all(_is_unchanged(name, value) for name, value in self.environment)
            and all(read_driver_version(*driver) == version for driver, version in self.drivers)
            and not any(map(os.path.lexists, self.absent))
            and all(os.readlink(link) == target for link, target in self.links)  # noqa: PTH115
        )

    def write(self, place: str) -> None:
        """Write the snapshot to a file. Ignore a failed write, because a snapshot only saves time."""
        write_own(place, marshal.dumps(vars(self)))

    def step_rows(self) -> list[tuple[Any, ...]]:
        """Unmarshal `steps` and return the rows."""
        found: list[tuple[Any, ...]] = marshal.loads(self.steps)  # noqa: S302
        return found

    def find_doubted(self) -> Iterator[int]:
        """Yield the indexes in `files` of the files whose stat has changed or could not be trusted, in order."""
        lstat, windows, fresh = os.lstat, is_windows(), frozenset(self.fresh)
        for number, (path, size, mtime_ns, ctime_ns, inode) in enumerate(self.files):
            try:
                seen = lstat(path)
            except OSError:
                yield number
                continue
            # Inlined, because a function call takes longer than the comparison.
            if (
                seen.st_mtime_ns != mtime_ns
                or seen.st_size != size
                or seen.st_ino != inode
                or (get_change_time_ns(path, seen) if windows else seen.st_ctime_ns) != ctime_ns
                or number in fresh
            ):
                yield number

    def list_unchanged(self) -> list[tuple[Stat, str]]:
        """Return the stat and the SHA-256 of each file that is certain to be unchanged. Files without a SHA-256 are left out."""
        doubted = set(self.find_doubted())
        known = zip(self.files, marshal.loads(self.digests), strict=True)  # noqa: S302
        return [(seen, digest.hex()) for number, (seen, digest) in enumerate(known) if digest and number not in doubted]

    def accept(self, recipe: str) -> int | None:
        """Return the number of doubted files if all have unchanged content, or None at the first file that has changed.

        The stats of touched files are updated. Raises one of `UNREADABLE`.
        """
        left, fresh, count = _MAX_HASHED_BYTES, [], 0
        moment: Moment | None = None
        digests: Sequence[bytes] = ()
        for number in self.find_doubted():
            if not digests:
                moment, digests = read_clock(recipe), marshal.loads(self.digests)  # noqa: S302
            count += 1
            path = self.files[number][0]
            seen = os.lstat(path)
            left -= seen.st_size
            # A pipe must not be opened.
            if not digests[number] or not S_ISREG(seen.st_mode) or left < 0 or _hash_file(path) != digests[number]:
                return None
            ctime_ns = get_change_time_ns(path, seen)
            self.files[number] = (path, seen.st_size, seen.st_mtime_ns, ctime_ns, seen.st_ino)
            if moment is None or not is_settled(seen, ctime_ns, moment):
                fresh.append(number)
        self.fresh = tuple(fresh)
        return count


def try_fast_path(
    arguments: Sequence[str], seconds: Callable[[], float], warn: Callable[[Sequence[Mapping[str, Any]]], object] | None = None
) -> str | None:
    """Return the line to print for `run [RECIPE] [--check] [--locked]` if nothing has changed, or None in any other case.

    `seconds` returns the time since the start. `warn` is called with the `warnings` of the snapshot, because a run repeats warnings.
    """
    names = [argument for argument in arguments[1:] if argument not in _FLAGS]
    recipe = names[0] if names else DEFAULT_RECIPE
    # Only the full command-line parser can interpret names with special characters, other than the colon of a drive.
    is_plain = set(os.path.splitdrive(recipe)[1]).isdisjoint(":*?[")
    if arguments[:1] != ["run"] or len(names) > 1 or not recipe or recipe[0] in "-@" or not is_plain:
        return None
    check = "--check" in arguments
    if os.environ.get("GITHUB_STEP_SUMMARY") and not check:  # a run always appends tables to a summary
        return None
    found = read_unchanged(recipe, refresh=not check)
    if found is None or not found.is_current or ("--locked" in arguments and found.lock != "held"):
        return None
    if found.warnings and found.view != describe_view(recipe):
        return None
    if found.warnings and warn is not None and not check:
        warn(found.warnings)
    line = format_nothing_to_do(found.count)
    return f"{line}." if check else f"{line} ({seconds():.2f} s)"


def format_nothing_to_do(steps: int) -> str:
    """Return the sentence to print if all steps are current. `steps` is the number of steps."""
    return "Nothing to do: " + ("1 step is" if steps == 1 else f"{steps} steps are") + " current"


def read_unchanged(
    recipe: str, settings: Sequence[str] = (), selection: Sequence[str] = (), *, refresh: bool = False
) -> Snapshot | None:
    """Return the snapshot of a recipe, its settings and its selected steps if nothing has changed since, or else None.

    With `refresh`, rewrite the snapshot if files were only touched, so that the next run does not hash these files again.
    """
    place = get_snapshot_path(recipe, settings, selection)
    if place is None:
        return None
    try:
        found = read(place)
        if not found.has_same_surroundings(recipe):
            return None
        touched = found.accept(recipe)
    except UNREADABLE:
        return None
    if touched is None:
        return None
    if touched and refresh:
        found.write(place)
    return found


def read(place: str) -> Snapshot:
    """Read the snapshot in a file. Raises one of `UNREADABLE` if the snapshot is missing or damaged."""
    return Snapshot(**marshal.loads(read_own(place)))  # noqa: S302 - as trusted as the program


def read_clock(recipe: str) -> Moment | None:
    """Return the time of the workspace's file system. The clock of a file server may differ from the clock of this machine.

    Return None if the workspace does not exist or if this user may not write to it.
    """
    workspace = _get_workspace(recipe)
    if os.path.islink(workspace):  # noqa: PTH114
        return None
    place = os.path.join(workspace, "clock")  # noqa: PTH118
    try:
        descriptor = os.open(place, _CLOCK, 0o666)
        try:
            os.utime(place)
            seen = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_dev


def is_settled(seen: os.stat_result, ctime_ns: int, moment: Moment) -> bool:
    """Return whether any write to a file after `moment` must change the times in the file's stat `seen`."""
    moment_ns, device = moment
    fine = seen.st_dev == device and ctime_ns % _FINE_UNIT_NS
    return max(seen.st_mtime_ns, ctime_ns) < moment_ns - (_FINE_STEP_NS if fine else _COARSE_STEP_NS)


def describe_view(recipe: str) -> tuple[str, str]:
    """Return the values that determine how messages name the files beside a recipe."""
    return os.path.normcase(recipe), os.getcwd()  # noqa: PTH109


def describe_identity(recipe: str) -> tuple[Any, ...] | None:
    """Return values that identify the program, the machine and the workspace of a recipe, or None if there is no workspace.

    A snapshot is valid only while these values are unchanged. The inode of the state file changes if the workspace is copied or created
    again. The paths change if the workspace is moved.
    """
    workspace = _get_workspace(recipe)
    try:
        state = os.stat(os.path.join(workspace, "state.sqlite"))  # noqa: PTH116, PTH118
    except OSError:
        return None
    paths = os.path.realpath(recipe), os.path.realpath(workspace)
    return FORMAT, __version__, sys.version, read_cpu_name(), count_cpus(), *paths, state.st_ino


def describe_environment(read: Mapping[str, str | None]) -> tuple[tuple[str, str | None], ...]:
    """Return the environment variables to store in a snapshot. `read` has the variables that the recipe read."""
    kept = {name: _hash_value(value) for name, value in read.items()} | {name: os.environ.get(name) for name in _PLACES}
    return tuple(sorted(kept.items()))


def get_snapshot_path(recipe: str, settings: Sequence[str], selection: Sequence[str]) -> str | None:
    """Return the path of the snapshot of a recipe, its settings (the values of `--set`) and its selected steps.

    Return None if this user has no cache.
    """
    root = find_cache_root()
    asked = "\0".join(["", *settings, "", *selection])
    return None if root is None else os.path.join(root, _FOLDER, f"{_make_name(os.path.realpath(recipe))}-{_make_name(asked)}")  # noqa: PTH118


def get_memo_path(recipe: str, settings: Sequence[str]) -> str | None:
    """Return the path of the memo of a recipe and its settings, or None if this user has no cache."""
    root = find_cache_root()
    name = f"memo-{_make_name(os.path.realpath(recipe))}-{_make_name(chr(0).join(settings))}"
    return None if root is None else os.path.join(root, _FOLDER, name)  # noqa: PTH118


def list_snapshots(recipe: str, root: str | None = None) -> list[str]:
    """Return the paths of all snapshots of a recipe, in this user's cache or in the cache at `root`."""
    folder = os.path.join(root or find_cache_root() or "", _FOLDER)  # noqa: PTH118
    beginning = f"{_make_name(os.path.realpath(recipe))}-"
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names if name.startswith(beginning)]  # noqa: PTH118


def forget(recipe: str) -> None:
    """Remove all snapshots of a recipe. A snapshot that cannot be removed stays valid."""
    for place in list_snapshots(recipe):
        try:
            os.unlink(place)  # noqa: PTH108
        except OSError:
            return


def remove_older(root: str, time: float) -> None:
    """Remove the snapshots and memos in the cache at `root` that were written before `time` (Unix seconds)."""
    try:
        for entry in list(os.scandir(os.path.join(root, _FOLDER))):  # noqa: PTH118
            if entry.stat().st_mtime < time:
                os.unlink(entry.path)  # noqa: PTH108
    except OSError:
        return


def _hash_file(path: str) -> bytes:
    from hashlib import sha256  # imported here, because few runs find a touched file

    digest = sha256()
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.digest()


def _hash_value(value: str | None) -> str | None:
    """Return the digest of a variable's value. Snapshots store the digest, because the value may be a secret."""
    from hashlib import sha256  # imported here, because few recipes read variables

    return None if value is None else sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def _is_unchanged(name: str, known: str | None) -> bool:
    """Return whether an environment variable is unchanged. `known` is its value or digest in the snapshot."""
    value = os.environ.get(name)
    return (value if name in _PLACES else _hash_value(value)) == known


def _get_workspace(recipe: str) -> str:
    return os.path.join(os.path.dirname(recipe), WORKSPACE)  # noqa: PTH118, PTH120


def _make_name(text: str) -> str:
    """Return a short name for a text. If two texts have the same name, their snapshots merely replace each other."""
    from binascii import crc32

    data = text.encode("utf-8", "surrogatepass")
    return f"{crc32(data):08x}{crc32(data[::-1]):08x}"
