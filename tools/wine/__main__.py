"""`python -m tools.wine [ROOM or PATH...]`: run the quick tests, and builds with a real EP, with Windows Python under wine.

The tests of each room run in a process of their own with a time limit. Counts go to standard output. The full output of pytest goes to
`.wine/logs/ROOM.log`.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tools.wine.environment import ROOT, MissingError, Wine

_TESTS = ROOT / "tests"
_SECONDS, _SECONDS_OF_BUILDS = 900, 7200
_QUICK = "not slow and not gate"
_COUNT = re.compile(r"(\d+) (passed|failed|errors?)\b")
_SKIPPED = re.compile(r"SKIPPED \[(\d+)\] [^ ]+ (.*)")
_CLASSES = ("wine lacks", "not yet")
"""First words of the reasons for which tests are skipped. Tests with any other reason run on POSIX or Linux only."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """A part of the tests: its paths, and the tests that are run."""

    name: str
    paths: tuple[str, ...]
    markers: str = _QUICK
    seconds: float = _SECONDS


_BUILDS = (
    Room(name="gate", paths=("tests/e2e/test_windows_builds.py",), markers="", seconds=2 * _SECONDS),  # runs beside other tests
    Room(
        name="builds",
        paths=(
            "tests/e2e/test_left_to_the_cpu.py",
            "tests/e2e/test_failures.py",
            "tests/e2e/test_quickstart.py",
            "tests/e2e/test_odd_names.py",
            "tests/e2e/test_concurrent_builds.py::test_two_builds_in_one_workspace_run_each_action_once",
        ),
        markers="",
        seconds=_SECONDS_OF_BUILDS,
    ),
    Room(
        name="kills",
        paths=(
            "tests/e2e/test_kills.py::test_kills_at_random_moments_leave_no_partial_output",
            "tests/e2e/test_concurrent_builds.py::test_twenty_builds_at_once_lose_nothing_and_mix_no_results",
        ),
        markers="exhaustive",
        seconds=_SECONDS_OF_BUILDS,
    ),
)


def main() -> int:
    """Run the tests. Return 1 if one failed, and 2 if the environment cannot be created."""
    parser = argparse.ArgumentParser(prog="python -m tools.wine", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM or PATH", help="such as cache or tests/cache/test_memo.py")
    parser.add_argument("--folder", type=Path, default=ROOT / ".wine", help="where the environment is (.wine)")
    parser.add_argument(
        "--seconds", type=float, help=f"time limit of a room ({_SECONDS}; {_SECONDS_OF_BUILDS} for paths and rooms with builds)"
    )
    parser.add_argument("--options", default="-n0", help="more options of pytest ('-n0')")
    parser.add_argument("--if-possible", action="store_true", help="skip the tests if this machine cannot have the environment")
    parser.add_argument("--setup-only", action="store_true", help="create the environment and run nothing")
    arguments = parser.parse_args()
    wine = Wine(arguments.folder)
    try:
        wine.setup()
    except MissingError as error:
        sys.stderr.write(f"wine: {'tests on Windows are skipped: ' if arguments.if_possible else ''}{error}\n")
        return 0 if arguments.if_possible else 2
    if arguments.setup_only:
        return 0
    rooms = [find_room(name) for name in arguments.rooms] or list_rooms()
    failed = [
        room.name for room in rooms if not run_room(wine, room, arguments.options.split(), arguments.seconds or room.seconds)
    ]
    if failed:
        sys.stdout.write(f"failed: {', '.join(failed)}; see {wine.folder / 'logs'}\n")
    return 1 if failed else 0


def list_rooms() -> list[Room]:
    """Return the rooms of the quick tests, then the builds with a real EP."""
    folders = sorted({path.parent.relative_to(_TESTS).parts[0] for path in _TESTS.glob("*/**/test_*.py")} - {"e2e"})
    files = tuple(f"tests/{path.name}" for path in sorted(_TESTS.glob("test_*.py")))
    rooms = [Room(name=name, paths=(f"tests/{name}",)) for name in folders]
    return [*rooms, Room(name="files", paths=files), *_BUILDS]


def find_room(name: str) -> Room:
    """Return a room by its name. Any other name is a path, of which all tests are run."""
    found = next((room for room in list_rooms() if room.name == name), None)
    if found is None:
        label = name.removeprefix("tests/").replace("/", "-").replace(":", "-")
        found = Room(name=label, paths=(name,), markers="", seconds=_SECONDS_OF_BUILDS)
    return found


def run_room(wine: Wine, room: Room, options: list[str], seconds: float) -> bool:
    """Run a room's tests, print a line with their counts, and return whether all passed."""
    log = wine.folder / "logs" / f"{room.name}.log"
    log.parent.mkdir(exist_ok=True)
    temporary = wine.drive / "tests" / room.name
    temporary.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    command = ("-X", "utf8", "-m", "pytest", "-v", "-p", "no:cacheprovider", "--basetemp", f"C:\\tests\\{room.name}")
    status = None
    with log.open("wb", buffering=0) as file, contextlib.suppress(subprocess.TimeoutExpired):
        status = wine.run_python(*command, "-m", room.markers, *options, *room.paths, output=file, seconds=seconds)
    took = time.monotonic() - began
    shutil.rmtree(temporary, ignore_errors=True)
    output = log.read_text(encoding="utf-8", errors="replace").rstrip()
    result = f"stopped after {seconds:.0f} s: {output.rpartition(chr(10))[2]}" if status is None else count_tests(output)
    sys.stdout.write(f"{room.name:<12} {took:6.0f} s  {result or f'status {status}'}\n")
    sys.stdout.flush()
    return status == 0


def count_tests(output: str) -> str:
    """Return the numbers of passed, failed and skipped tests, the skipped ones by their class."""
    found = [f"{number} {result}" for number, result in _COUNT.findall(output.rstrip().rpartition("\n")[2])]
    skipped = Counter[str]()
    for number, reason in _SKIPPED.findall(output):
        skipped[next((name for name in _CLASSES if reason.startswith(name)), "POSIX only")] += int(number)
    return ", ".join([*found, *(f"{number} skipped ({name})" for name, number in skipped.items())])


if __name__ == "__main__":
    sys.exit(main())
