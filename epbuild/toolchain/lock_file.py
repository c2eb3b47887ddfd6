"""Lock file as TOML: one line per entry, sorted, so that git can merge it.

A comment and the format come first. Each line contains its whole key, so its meaning does not depend on its position after a merge. Each
key occurs once, so two versions of a package are a contradiction. Git reports changes to neighboring lines as a conflict. The line of a
platform's Python sorts before its packages, as package names have no capital letters. This line rarely changes, so it separates the
packages of neighboring toolchains.

    epbuild-lock = 2
    recipe = "NAME"
    catalog.SUBJECT = "REVISION [sha256:HEX]"
    model.NAME.graph = "sha256:HEX"
    model.NAME.data.LOCATION = "sha256:HEX"
    toolchain.NAME.requires.REQUIREMENT = true
    toolchain.NAME.PLATFORM.Python = "IMPLEMENTATION-VERSION"
    toolchain.NAME.PLATFORM.PACKAGE = ["VERSION", "sha256:HEX", ...]
    toolchain.NAME.PLATFORM.PACKAGE = ["VERSION", "installed"]
    wheel.PACKAGE.VERSION = ["sha256:HEX", ...]

Packages, and releases that contain models, list each file that they may be installed from. Lines may be in any order, as a merge may
reorder them. Every other deviation is an error, including TOML's multi-line forms.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from epbuild.core.errors import PlanError, Position, Problem
from epbuild.toolchain.lock import Lock, LockedEnvironment, LockedModel, LockedToolchain, Package

FORMAT = 2
_COMMENT = (
    "# Exact versions of this recipe's toolchains and remote models. "
    "Written by `epbuild lock`; keep this file under version control."
)
_HEAD = ("epbuild-lock",)
_AGAIN = "Run `epbuild lock` to write a new lock."
_CONFLICT = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")

_PREFIX = "sha256:"
_FILE = re.compile(rf"{_PREFIX}[0-9a-f]{{64}}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SUBJECT = re.compile(r"\S+")
_REVISION = re.compile(rf"[0-9]+(?: {_FILE.pattern})?")
_REQUIREMENT = re.compile(r"\S+(?: \S+)*")
_PLATFORM = re.compile(r"[a-z0-9]+-[a-z0-9_]+")
_PYTHON = re.compile(r"[a-z]+-[0-9]+\.[0-9]+")
_PACKAGE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_VERSION = re.compile(r"[A-Za-z0-9.!+_-]+")

_Key = tuple[str, ...]


def decode_lock(content: bytes) -> str:
    """Return a lock's bytes as text, without a byte order mark. Lines with invalid UTF-8 become invalid entries."""
    return content.decode("utf-8-sig", errors="replace")


def render(lock: Lock) -> str:
    """Return the text of a lock. Equal locks have equal texts."""
    return (
        "\n".join([_COMMENT, format_toml_line(_HEAD, FORMAT), *sorted(format_toml_line(*fact) for fact in _list_facts(lock))])
        + "\n"
    )


def read_lock(text: str, file: str) -> Lock:
    """Parse the `text` of the lock `file`. Raises PlanError (EPB242) that names the first invalid line."""
    lock, problem = salvage(text, file)
    if problem is not None:
        raise PlanError(problem)
    return lock


def salvage(text: str, file: str) -> tuple[Lock, Problem | None]:
    """Return the valid entries of a lock, and its first problem, such as a merge conflict.

    Of two contradicting entries, the first counts. Raises PlanError (EPB242) for a lock in another format, which may have entries that
    this epbuild does not know. Raises the same error for a file that is not a lock, as another program's file may have the same name.
    """
    reading, seen = _LockReading(), dict[_Key, tuple[int, object]]()
    problems: list[Problem] = []

    def add_problem(number: int, message: str, hint: str = _AGAIN) -> None:
        problems.append(Problem("EPB242", message, Position(file, number, 1), hint))

    number = 0
    # Not `splitlines`, which splits at more characters than git does.
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        key, value = _parse_fact(line)
        if line.startswith(_CONFLICT):
            hint = "Run `epbuild lock`: it resolves the conflict and keeps as many versions as possible."
            add_problem(number, "the lock has a merge conflict", hint)
        elif not key and value == {}:  # empty, or a comment
            pass
        elif key in seen:
            before, other = seen[key]
            add_problem(number, f"this line {'repeats' if value == other else 'contradicts'} line {before}")
        elif seen and not reading.add(key, value):
            add_problem(number, "this line is not a valid lock entry")
        else:
            if not seen:
                _check_head(key, value, Position(file, number, 1))
            seen[key] = number, value
    if not seen:
        add_problem(1, "the lock is empty")
    elif not reading.recipe:
        add_problem(number, "the lock does not name its recipe")
    for fault in reading.find_gaps():
        add_problem(number, fault)
    return reading.lock(), problems[0] if problems else None


def _parse_fact(line: str) -> tuple[_Key, object]:
    """Return the key and the value of a line. The value is {} for an empty line, and None for a line that is not TOML."""
    key: _Key = ()
    try:
        value: object = tomllib.loads(line.removesuffix("\r"))
    except (ValueError, RecursionError):
        return key, None
    while isinstance(value, dict) and len(value) == 1:
        [(part, value)] = value.items()
        key = (*key, part)
    return key, value


def _check_head(key: _Key, value: object, where: Position) -> None:
    if key != _HEAD:
        message = f"this is not an epbuild lock: its first line is not '{format_toml_line(_HEAD, FORMAT)}'"
        raise PlanError(Problem("EPB242", message, where, "Remove the file if you do not need it."))
    if value != FORMAT:
        message = "the lock has a format that this epbuild does not support"
        raise PlanError(Problem("EPB242", message, where, "Use the epbuild version that wrote the lock, or a newer one."))


def _list_facts(lock: Lock) -> Iterator[tuple[_Key, object]]:
    yield ("recipe",), lock.recipe
    for subject, revision in lock.catalog.items():
        yield ("catalog", subject), revision
    for name, model in lock.models.items():
        yield ("model", name, "graph"), f"{_PREFIX}{model.graph}"
        for location, digest in model.data.items():
            yield ("model", name, "data", location), f"{_PREFIX}{digest}"
    for name, toolchain in lock.toolchains.items():
        for requirement in toolchain.requires:
            yield ("toolchain", name, "requires", requirement), True
        for platform, environment in toolchain.platforms.items():
            yield ("toolchain", name, platform, "Python"), environment.python
            for package in environment.packages:
                files = [f"{_PREFIX}{digest}" for digest in package.files] or ["installed"]
                yield ("toolchain", name, platform, package.name), [package.version, *files]
    for release in lock.wheels:
        yield ("wheel", release.name, release.version), [f"{_PREFIX}{digest}" for digest in release.files]


@dataclass
class _LockReading:
    """Accumulator of entries while a lock is read line by line."""

    recipe: str = ""
    catalog: dict[str, str] = field(default_factory=dict)
    graphs: dict[str, str] = field(default_factory=dict)
    data: dict[str, dict[str, str]] = field(default_factory=dict)
    requires: dict[str, list[str]] = field(default_factory=dict)
    pythons: dict[tuple[str, str], str] = field(default_factory=dict)
    packages: dict[tuple[str, str], list[Package]] = field(default_factory=dict)
    wheels: list[Package] = field(default_factory=list)

    def add(self, key: _Key, value: object) -> bool:
        """Add an entry and return True. Return False if the key and value are not a valid entry."""
        match key, value:
            case ("recipe",), str(name) if _NAME.fullmatch(name):
                self.recipe = name
            case ("catalog", subject), str(revision) if _SUBJECT.fullmatch(subject) and _REVISION.fullmatch(revision):
                self.catalog[subject] = revision
            case ("model" | "toolchain", name, *_), _ if not _NAME.fullmatch(name):
                return False
            case ("model", name, "graph"), str(file) if _FILE.fullmatch(file):
                self.graphs[name] = file.removeprefix(_PREFIX)
            case ("model", name, "data", location), str(file) if _FILE.fullmatch(file):
                self.data.setdefault(name, {})[location] = file.removeprefix(_PREFIX)
            case ("toolchain", name, "requires", text), True if _REQUIREMENT.fullmatch(text):
                self.requires.setdefault(name, []).append(text)
            case ("toolchain", _, platform, _), _ if not _PLATFORM.fullmatch(platform):
                return False
            case ("toolchain", name, platform, "Python"), str(python) if _PYTHON.fullmatch(python):
                self.pythons[name, platform] = python
            case ("toolchain", name, platform, package), [version, "installed"] if _is_release(package, version):
                self.packages.setdefault((name, platform), []).append(Package(package, str(version)))
            case ("toolchain", name, platform, package), [version, *files] if _is_release(package, version) and _are_files(files):
                self.packages.setdefault((name, platform), []).append(_make_package(package, version, files))
            case ("wheel", package, version), [*files] if _is_release(package, version) and _are_files(files):
                self.wheels.append(_make_package(package, version, files))
            case _:
                return False
        return True

    def find_gaps(self) -> Iterator[str]:
        """Yield a message for each missing entry that another entry requires."""
        for name in sorted(self.data.keys() - self.graphs.keys()):
            yield f"the lock has the external data of the model '{name}' but not its graph"
        for name, platform in sorted(self.packages.keys() - self.pythons.keys()):
            yield f"the lock does not name the Python of the toolchain '{name}' on {platform}"
        for name, platform in sorted(self.pythons.keys() - self.packages.keys()):
            yield f"the lock has no packages of the toolchain '{name}' on {platform}"
        for (name, platform), packages in sorted(self.packages.items()):
            if len({package.is_installed for package in packages}) > 1:
                yield f"the lock lists the files of only some packages of the toolchain '{name}' on {platform}"

    def lock(self) -> Lock:
        """Return the entries as a `Lock`. Platforms without a Python or without packages are left out."""
        platforms: dict[str, dict[str, LockedEnvironment]] = {name: {} for name in self.requires}
        for (name, platform), python in sorted(self.pythons.items()):
            packages = self.packages.get((name, platform))
            if packages:
                platforms.setdefault(name, {})[platform] = LockedEnvironment(python, tuple(sorted(packages)))
        return Lock(
            recipe=self.recipe,
            toolchains={
                name: LockedToolchain(tuple(sorted(self.requires.get(name, ()))), found)
                for name, found in sorted(platforms.items())
            },
            models={name: LockedModel(graph, self.data.get(name, {})) for name, graph in sorted(self.graphs.items())},
            catalog=self.catalog,
            wheels=tuple(sorted(self.wheels)),
        )


def _is_release(package: str, version: object) -> bool:
    return bool(_PACKAGE.fullmatch(package) and isinstance(version, str) and _VERSION.fullmatch(version))


def _are_files(files: list[object]) -> bool:
    return bool(files) and all(isinstance(file, str) and _FILE.fullmatch(file) for file in files)


def _make_package(name: str, version: object, files: list[object]) -> Package:
    return Package(name, str(version), tuple(sorted({str(file).removeprefix(_PREFIX) for file in files})))


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def format_toml_line(key: Iterable[str], value: object) -> str:
    return (
        f"{'.'.join(part if _BARE_KEY.fullmatch(part) else format_toml_value(part) for part in key)} = {format_toml_value(value)}"
    )


def format_toml_value(value: object) -> str:
    """Return a string, a number, a boolean or a list of such values as TOML. For these types, TOML is JSON with DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
