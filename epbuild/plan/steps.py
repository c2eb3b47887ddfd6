"""The plan as values: steps that a person sees, the session groups that compile them, and the emissions that lay artifacts out.

    compile:decoder/phone/prefill ─┐
                                   ├─ share:decoder/phone ── emit:decoder/phone/directory
    compile:decoder/phone/decode ──┘

An action (the unit of caching and scheduling) is one session group or one emission; it goes by the id of its last step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from epbuild.catalog import Entry
from epbuild.errors import Position, Problem
from epbuild.recipe import CompileSettings, DeviceChoice, Expectation, Toolchain, substitute

StepKind = Literal["compile", "share", "emit"]


@dataclass(frozen=True)
class Step:
    """A node of the plan; `action` is the id of the action that does it, `needs` the ids of the steps before it."""

    id: str
    kind: StepKind
    needs: tuple[str, ...]
    action: str


@dataclass(frozen=True)
class Member:
    """One source model of a session group: its files, and the names under which it is staged and compiled.

    EPs write the staged names into their output, so they are part of the contract and of the key.
    """

    name: str
    graph: Path
    external: Mapping[str, Path]
    """Each external data file by the location that the graph names."""
    pin: str | None
    where: Position

    @property
    def source(self) -> str:
        """The graph's path in the staging directory; external data lies below its folder."""
        return f"in/{self.name}/{self.name}.onnx"

    @property
    def output(self) -> str:
        """The EPContext model's path in the staging directory."""
        return f"out/{self.name}_ctx.onnx"

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the model consists of."""
        return (self.graph, *self.external.values())


@dataclass(frozen=True)
class PlannedTarget:
    """A target whose options have become the strings that ONNX Runtime takes."""

    name: str
    toolchain: Toolchain
    entry: Entry
    device: DeviceChoice
    provider_options: Mapping[str, str]
    session_options: Mapping[str, str]
    silent_options: frozenset[str]
    """The options and session keys that do not change what a compile writes, and so stay out of the key."""

    @property
    def binary_target(self) -> str | None:
        """What the context binary should say that it was made for, where the catalog knows how to ask; else None."""
        option = self.entry.target_option
        asked = self.provider_options.get(option) if option else None
        return asked if asked and not asked.isdigit() and "," not in asked else None


@dataclass(frozen=True)
class SessionGroup:
    """What runs in one fresh process, in order: a sharing group for one target, or one model for one target."""

    id: str
    group: str
    target: PlannedTarget
    members: tuple[Member, ...]
    share: bool
    compile: CompileSettings
    expect: Expectation
    timeout: float | None
    steps: tuple[str, ...]

    def external_file(self, member: Member) -> str | None:
        """The name of the file that receives `member`'s large initializers, beside its EPContext model; None: they stay inline."""
        name = self.compile.external_file
        return str(substitute(name, {"model": member.name})) if name else None


@dataclass(frozen=True)
class Emission:
    """One output for one group and target: which compiled models go where. Names are POSIX paths below `directory`."""

    id: str
    group: str
    target: PlannedTarget
    layout: Literal["directory"]
    directory: Path
    session_groups: tuple[str, ...]
    models: Mapping[str, str]
    """The EPContext model's name, by member."""
    binaries: Mapping[str, str]
    """The context binary's name, by member; members that share a binary have the same name here."""
    where: Position


@dataclass(frozen=True)
class Plan:
    """The ordered graph of steps, every step after those that it needs, with the actions behind them."""

    steps: tuple[Step, ...]
    session_groups: Mapping[str, SessionGroup]
    emissions: Mapping[str, Emission]
    warnings: tuple[Problem, ...] = ()

    def toolchains(self) -> dict[str, tuple[Toolchain, tuple[Entry, ...]]]:
        """The toolchains that the plan's session groups run in, each with the EPs that it has to hold."""
        found: dict[str, tuple[Toolchain, tuple[Entry, ...]]] = {}
        for group in self.session_groups.values():
            toolchain, entry = group.target.toolchain, group.target.entry
            entries = found.get(toolchain.name, (toolchain, ()))[1]
            if entry not in entries:
                found[toolchain.name] = (toolchain, (*entries, entry))
        return found
