"""The lock as text: a sorted line for each fact, so that git merges it.

A comment and a line with the format come first. A change that lies beside another one is a conflict for git; the Python in its
parentheses comes first on a platform, and seldom changes, so that a new toolchain does not lie beside the first package of the
next.

    recipe NAME
    catalog SUBJECT REVISION [sha256:HEX]
    model NAME sha256:HEX [LOCATION]
    toolchain NAME requires REQUIREMENT
    toolchain NAME PLATFORM (PYTHON)
    toolchain NAME PLATFORM PACKAGE==VERSION sha256:HEX
    toolchain NAME PLATFORM PACKAGE==VERSION installed
    wheel PACKAGE==VERSION sha256:HEX

A package, and a release that models are taken from, has a line for each file that it may be installed from. A merge may leave the lines in
another order; nothing else is forgiven.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import unquote

from epbuild.core.errors import PlanError, Position, Problem
from epbuild.toolchain.lock_facts import Lock, LockedEnvironment, LockedModel, LockedToolchain, Package

FORMAT = 1
_COMMENT = (
    "# What this recipe's toolchains and remote models are, exactly. Written by `epbuild lock`; keep it in version control."
)
_HEAD = "epbuild-lock"
_AGAIN = "Write it anew with `epbuild lock`."
_CONFLICT = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")

_DIGEST = r"sha256:(?P<digest>[0-9a-f]{64})"
_NAME = r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)"
_TOOLCHAIN = rf"toolchain {_NAME}"
_RELEASE = r"(?P<package>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[A-Za-z0-9.!+_-]+)"
_ON = rf"{_TOOLCHAIN} (?P<platform>[a-z0-9]+-[a-z0-9_]+)"
_FACTS = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "recipe": rf"recipe {_NAME}",
        "catalog": r"catalog (?P<subject>\S+) (?P<revision>[0-9]+(?: sha256:[0-9a-f]{64})?)",
        "model": rf"model {_NAME} {_DIGEST}(?: (?P<location>.+))?",
        "requires": rf"{_TOOLCHAIN} requires (?P<requirement>\S+(?: \S+)*)",
        "python": rf"{_ON} \((?P<python>[a-z]+-[0-9]+\.[0-9]+)\)",
        "package": rf"{_ON} {_RELEASE} (?:{_DIGEST}|(?P<installed>installed))",
        "wheel": rf"wheel {_RELEASE} {_DIGEST}",
    }.items()
}

_Key = TypeVar("_Key", bound=Hashable)


def decoded(content: bytes) -> str:
    """A lock's bytes as text: without the mark that editors of Windows begin UTF-8 with; what is no UTF-8 is no fact either."""
    return content.decode("utf-8-sig", errors="replace")


def render(lock: Lock) -> str:
    """The text of a lock: the same for equal locks."""
    return "\n".join([_COMMENT, f"{_HEAD} {FORMAT}", *sorted(_lines(lock))]) + "\n"


def read_lock(text: str, file: str) -> Lock:
    """The lock that `text`, from `file`, holds. Raises PlanError (EPB242) that names the first line that does not belong in one."""
    lock, problem = salvage(text, file)
    if problem is not None:
        raise PlanError(problem)
    return lock


def salvage(text: str, file: str) -> tuple[Lock, Problem | None]:
    """What can be made out of a lock, and what is wrong with it first, such as a merge: of two facts that exclude each other, the first.

    Raises PlanError (EPB242) for a lock of another format, as there is something in it that this epbuild cannot know, and for what is
    no lock: another program's file may have the same name.
    """
    reading, seen = _LockReading(), dict[str, int]()
    problems: list[Problem] = []

    def wrong(number: int, message: str, hint: str = _AGAIN) -> None:
        problems.append(Problem("EPB242", message, Position(file, number, 1), hint))

    head = number = 0
    # Not by `splitlines`, which knows more ends of lines than git does.
    for number, line in enumerate((line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")), start=1):
        if line.startswith("#") or not line:
            continue
        if line.startswith(_CONFLICT):
            hint = "Run `epbuild lock`: it settles it, and keeps the versions that it can."
            wrong(number, "the lock has a merge conflict", hint)
            continue
        if not head:
            head = number
            if line == f"{_HEAD} {FORMAT}":
                continue
            if re.fullmatch(rf"{_HEAD} [0-9]+", line):
                message = "the lock is of a format that this epbuild does not know"
                hint = "Take the epbuild that wrote it, or a newer one."
                raise PlanError(Problem("EPB242", message, Position(file, number, 1), hint))
            message = f"this is no lock of epbuild: its first line is not '{_HEAD} {FORMAT}'"
            raise PlanError(Problem("EPB242", message, Position(file, number, 1), "If nothing needs it, remove it."))
        if line in seen:
            wrong(number, f"the lock repeats line {seen[line]}")
            continue
        seen[line] = number
        fault = reading.take(line)
        if fault:
            wrong(number, fault)
    if not head:
        wrong(1, "the lock is empty")
    elif not reading.recipe:
        wrong(number, "the lock does not name its recipe")
    for fault in reading.gaps():
        wrong(number, fault)
    return reading.lock(), problems[0] if problems else None


def _lines(lock: Lock) -> Iterator[str]:
    yield f"recipe {lock.recipe}"
    for subject, revision in lock.catalog.items():
        yield f"catalog {subject} {revision}"
    for name, model in lock.models.items():
        yield f"model {name} sha256:{model.graph}"
        for location, digest in model.data.items():
            yield f"model {name} sha256:{digest} {_escaped(location)}"
    for name, toolchain in lock.toolchains.items():
        for requirement in toolchain.requires:
            yield f"toolchain {name} requires {requirement}"
        for platform, environment in toolchain.platforms.items():
            place = f"toolchain {name} {platform}"
            yield f"{place} ({environment.python})"
            for package in environment.packages:
                for origin in [f"sha256:{digest}" for digest in package.files] or ["installed"]:
                    yield f"{place} {package.requirement} {origin}"
    for release in lock.wheels:
        for digest in release.files:
            yield f"wheel {release.requirement} sha256:{digest}"


@dataclass
class _LockReading:
    """The facts of a lock, line by line."""

    recipe: str = ""
    catalog: dict[str, str] = field(default_factory=dict)
    graphs: dict[str, str] = field(default_factory=dict)
    data: dict[str, dict[str, str]] = field(default_factory=dict)
    requires: dict[str, list[str]] = field(default_factory=dict)
    pythons: dict[tuple[str, str], str] = field(default_factory=dict)
    packages: dict[tuple[str, str], dict[str, tuple[str, list[str]]]] = field(default_factory=dict)
    wheels: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def take(self, line: str) -> str | None:
        """Note what a line holds; what comes back is what is wrong with it."""
        for kind, pattern in _FACTS.items():
            found = pattern.fullmatch(line)
            if found:
                return self._note(kind, found)
        return "this line is no fact of a lock"

    def _note(self, kind: str, found: re.Match[str]) -> str | None:
        match kind:
            case "recipe" if self.recipe:
                return f"the lock names two recipes, '{self.recipe}' and '{found['name']}'"
            case "recipe":
                self.recipe = found["name"]
            case "catalog":
                return _put(self.catalog, found["subject"], found["revision"], f"the catalog's {found['subject']}")
            case "model" if found["location"] is None:
                return _put(self.graphs, found["name"], found["digest"], f"the model '{found['name']}'")
            case "model":
                data, what = self.data.setdefault(found["name"], {}), f"{found['location']} of the model '{found['name']}'"
                return _put(data, unquote(found["location"]), found["digest"], what)
            case "requires":
                self.requires.setdefault(found["name"], []).append(found["requirement"])
            case "python":
                name, platform = found["name"], found["platform"]
                what = f"the Python of the toolchain '{name}' on {platform}"
                return _put(self.pythons, (name, platform), found["python"], what)
            case "package":
                packages = self.packages.setdefault((found["name"], found["platform"]), {})
                version, files = packages.setdefault(found["package"], (found["version"], []))
                if version != found["version"]:
                    both = f"{found['package']} {version} and {found['version']}"
                    return f"the lock has {both} for the toolchain '{found['name']}'"
                files += [found["digest"]] if found["digest"] else []
            case "wheel":
                self.wheels.setdefault((found["package"], found["version"]), []).append(found["digest"])
        return None

    def gaps(self) -> Iterator[str]:
        """What is missing beside the facts that are there."""
        for name in sorted(self.data.keys() - self.graphs.keys()):
            yield f"the lock has the external data of the model '{name}', and not its graph"
        for name, platform in sorted(self.packages.keys() - self.pythons.keys()):
            yield f"the lock does not name the Python that the toolchain '{name}' has on {platform}"
        for name, platform in sorted(self.pythons.keys() - self.packages.keys()):
            yield f"the lock has no packages of the toolchain '{name}' on {platform}"
        for (name, platform), packages in sorted(self.packages.items()):
            if len({not files for _, files in packages.values()}) > 1:
                yield f"the lock has the files of only some packages of the toolchain '{name}' on {platform}"

    def lock(self) -> Lock:
        """The facts as a value; a platform with a gap is left out."""
        platforms: dict[str, dict[str, LockedEnvironment]] = {name: {} for name in self.requires}
        for (name, platform), python in sorted(self.pythons.items()):
            packages = [
                Package(package, version, tuple(sorted(files)))
                for package, (version, files) in self.packages.get((name, platform), {}).items()
            ]
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
            wheels=tuple(Package(*release, tuple(sorted(files))) for release, files in sorted(self.wheels.items())),
        )


def _put(known: dict[_Key, str], key: _Key, value: str, what: str) -> str | None:
    if known.setdefault(key, value) != value:
        return f"the lock contradicts itself about {what}"
    return None


def _escaped(location: str) -> str:
    return re.sub(r"[%\x00-\x1f\x7f]", lambda found: f"%{ord(found[0]):02X}", location)
