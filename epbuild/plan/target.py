"""`PlannedTarget`: a target whose EPs and options are known to be valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from epbuild.catalog.catalog import session_keys
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import KnownDifference, Limitation
from epbuild.core.digest import fingerprint_of
from epbuild.core.errors import Position
from epbuild.recipe.model import DeviceChoice, GraphOptimization, ToolchainSpec

_ACCEPTED = "the recipe accepts that the same compile gives other bytes"


class OptionFile(Struct, frozen=True):
    """A file that an option names, and the name under which the EP is given it."""

    path: Path
    staged: str


class PlannedEp(Struct, frozen=True):
    """One EP of a target, whose options have become the strings that ONNX Runtime takes."""

    entry: EpEntry
    device: DeviceChoice
    provider_options: Mapping[str, str]
    files: Mapping[str, OptionFile]
    """The files that options name, by option; these options' values are the staged names."""
    library: Path | None
    """The plugin library to register; None: the one of the EP's package."""
    silent: frozenset[str]
    """The options that do not change what a compile writes, and so stay out of the key."""
    only_compiling: frozenset[str] = frozenset()
    """Those of them that no session reads which runs what was compiled."""

    @property
    def lasting_options(self) -> dict[str, str]:
        """The options that outputs show: without the dumps of a compile, and where on this machine they went."""
        return {name: value for name, value in self.provider_options.items() if name not in self.only_compiling}

    @property
    def binary_target(self) -> str | None:
        """What the context binary should name as its target, where the catalog knows how to ask; else None."""
        return self.entry.binary_target(self.provider_options)


class PlannedTarget(Struct, frozen=True, dict=True):
    """A target whose EPs, in order of preference, and session keys are known to be what ONNX Runtime takes."""

    name: str
    toolchain: ToolchainSpec
    eps: tuple[PlannedEp, ...]
    session_options: Mapping[str, str]
    session_files: Mapping[str, OptionFile]
    """The files that session keys name, by key."""
    silent: frozenset[str]
    """The session keys that do not change what a compile writes."""
    environment: Mapping[str, str]
    unchecked: tuple[str, ...]
    """The options and session keys that the catalog does not know, and that the recipe lets through."""
    reproducible: bool = True
    """False where the recipe accepts that the same compile gives other bytes."""
    where: Position | None = None
    """Where the recipe defines it."""
    old_runtime: str | None = None
    """The release of ONNX Runtime where the toolchain pins one without ModelCompiler, in which a session compiles."""

    @cached_property
    def fingerprint(self) -> str:
        """Digest of everything that the target is, the catalog entries of its EPs among it. It is the same in every process."""
        eps = [[ep.entry.fingerprint, *_ordered_fields(ep, without="entry")] for ep in self.eps]
        return fingerprint_of([*_ordered_fields(self, without="eps"), eps])

    @property
    def title(self) -> str:
        """The EPs' names, for messages."""
        return ", ".join(ep.entry.ep for ep in self.eps)

    @property
    def one_binary(self) -> bool:
        """Whether the members of a sharing group have one context binary between them."""
        return all(ep.entry.sharing.binaries == "one" for ep in self.compiling)

    @property
    def compiling(self) -> tuple[PlannedEp, ...]:
        """The EPs that leave compiled parts behind; the CPU EP is there to run what they do not take."""
        return tuple(ep for ep in self.eps if ep.entry.sources)

    @property
    def graph_optimization_level(self) -> GraphOptimization:
        """How far ONNX Runtime optimises a graph where the recipe does not set it: as is best for the first EP that compiles."""
        return next((ep.entry.graph_optimization_level for ep in self.compiling), "disable_all")

    @property
    def leaves_to_cpu(self) -> bool:
        """Whether the target names, last, an EP that takes every node: then some may be left to it."""
        return self.eps[-1].entry.takes_every_node

    @property
    def known_differences(self) -> tuple[KnownDifference, ...]:
        """In what its artifacts are known to differ when they are compiled again; nothing is claimed where there is none."""
        return tuple(row for ep in self.compiling for row in ep.entry.known_differences(ep.provider_options))

    def known_to_differ(self, *, reproducible: bool) -> str | None:
        """Why its artifacts are known to differ when they are compiled again, as clauses; None where that is not known of them.

        `reproducible` is False where the recipe accepts it, of the target or of a group that is compiled for it.
        """
        accepted = () if reproducible else (_ACCEPTED,)
        return "; ".join(dict.fromkeys((*(row.why for row in self.known_differences), *accepted))) or None

    def limitations(self, reported: str, act: Literal["compile", "load"]) -> Iterator[tuple[str, Limitation]]:
        """Each limitation that the catalog knows and that shows in what a compile or a load reported, with whose it is."""
        for ep in self.eps:
            for limitation in ep.entry.cannot:
                if limitation.shows(reported, act, ep.device.type, ep.provider_options):
                    yield ep.entry.ep, limitation
        for limitation in session_keys().cannot:
            if limitation.shows(reported, act, None, {}):
                yield "ONNX Runtime", limitation

    @property
    def option_files(self) -> tuple[OptionFile, ...]:
        return (*(file for ep in self.eps for file in ep.files.values()), *self.session_files.values())

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the target's options name, and every plugin library of the user's own."""
        named = (file.path for file in self.option_files)
        return (*named, *(ep.library for ep in self.eps if ep.library))


def _ordered_fields(value: Struct, without: str) -> list[Any]:
    """Return the values of the fields but one; the items of sets, which have no order, are sorted."""
    found = (getattr(value, name) for name in value.__struct_fields__ if name != without)
    return [sorted(item) if isinstance(item, frozenset) else item for item in found]
