"""What is known of each EP, as values read from the data files beside this module: one file per EP, one entry per file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

_DATA = Path(__file__).parent / "data"
_SESSION = "session"


@dataclass(frozen=True)
class Option:
    """One option of an EP, or one session key: what values it takes and whether they change what a compile writes."""

    name: str
    type: Literal["text", "choice", "boolean", "integer", "name", "pattern"]
    changes_output: bool
    meaning: str
    values: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    pattern: str | None = None
    example: str | None = None


@dataclass(frozen=True)
class SharingRefusal:
    """An option value that rules weight sharing out, as a regular expression, and why."""

    option: str
    pattern: str
    reason: str

    def matches(self, value: str) -> bool:
        """Whether an option's canonical value is one of the refused ones."""
        return re.search(self.pattern, value) is not None


@dataclass(frozen=True)
class Sharing:
    """Whether and how an EP shares weights between the members of a group."""

    possible: bool
    binaries: Literal["one", "each"]
    reason: str
    refusals: tuple[SharingRefusal, ...]


@dataclass(frozen=True)
class Entry:
    """All that epbuild knows of one EP in one packaging."""

    ep: str
    short: str
    revision: int
    kind: Literal["plugin", "provider"]
    module: str
    distribution: str
    sources: tuple[str, ...]
    devices: tuple[str, ...]
    output_depends_on_host: bool
    booleans: tuple[str, str]
    sharing: Sharing
    options: Mapping[str, Option]
    names: Mapping[str, Mapping[str, str]]
    """For an option whose values have several spellings: the spelling, and the one that stands for all."""
    target_pattern: str | None
    """A regular expression whose first group is the target's name inside a context binary."""
    target_option: str | None
    """The option that says which target was asked for."""


@dataclass(frozen=True)
class SessionKeys:
    """The session configuration keys that a recipe may set, and those that epbuild sets itself, with what to write instead."""

    revision: int
    options: Mapping[str, Option]
    reserved: Mapping[str, str]


def known_eps() -> tuple[str, ...]:
    """The names of all EPs that have an entry, sorted."""
    return tuple(sorted(_by_ep()))


def entry(ep: str) -> Entry:
    """The entry of an EP by its ONNX Runtime name; raises KeyError for one that is not known."""
    return _read_entry(_by_ep()[ep])


@cache
def session_keys() -> SessionKeys:
    """What is known of session configuration keys."""
    document = _read(_SESSION)
    return SessionKeys(document["revision"], _options(document["options"]), document["reserved"])


@cache
def _by_ep() -> dict[str, str]:
    names = (path.stem for path in _DATA.glob("*.toml"))
    return {_read(name)["ep"]: name for name in sorted(names) if name != _SESSION}


@cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((_DATA / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def _read_entry(name: str) -> Entry:
    document = _read(name)
    sharing, binary = document["sharing"], document["binary"]
    return Entry(
        ep=document["ep"],
        short=document["short"],
        revision=document["revision"],
        kind=document["kind"],
        module=document["module"],
        distribution=document["distribution"],
        sources=tuple(document["sources"]),
        devices=tuple(document["devices"]),
        output_depends_on_host=document["output_depends_on_host"],
        booleans=(document["booleans"][0], document["booleans"][1]),
        sharing=Sharing(
            possible=sharing["possible"],
            binaries=sharing["binaries"],
            reason=sharing.get("reason", ""),
            refusals=tuple(SharingRefusal(**row) for row in sharing.get("refused_values", ())),
        ),
        options=_options(document["options"]),
        names=document.get("names", {}),
        target_pattern=binary.get("target_pattern"),
        target_option=binary.get("target_option"),
    )


def _options(table: Mapping[str, Any]) -> dict[str, Option]:
    return {
        name: Option(
            name=name,
            type=row["type"],
            changes_output=row["output"],
            meaning=row["meaning"],
            values=tuple(row.get("values", ())),
            minimum=row.get("minimum"),
            maximum=row.get("maximum"),
            pattern=row.get("pattern"),
            example=row.get("example"),
        )
        for name, row in table.items()
    }
