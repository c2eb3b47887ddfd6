"""`PlannedTarget`: a target with valid EPs and options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from epbuild.catalog.catalog import list_session_keys
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import KnownDifference, Limitation
from epbuild.core.digest import hash_values
from epbuild.core.errors import Position
from epbuild.recipe.model import DeviceChoice, GraphOptimization, ToolchainSpec

_ACCEPTED = "the recipe accepts that repeated compiles produce different bytes"


class OptionFile(Struct, frozen=True):
    """File that an option refers to, and the name of the file in the staging directory."""

    path: Path
    staged: str


NO_FALLBACK = "session.disable_cpu_ep_fallback"
"""Session key that forbids CPU fallback."""
WEIGHTLESS_KEYS = ("ep.enable_weightless", "ep.enable_weightless_mode")
"""Session keys that request contexts without weights."""


class PlannedEp(Struct, frozen=True):
    """EP of a target, with its options as the strings that ONNX Runtime expects."""

    entry: EpEntry
    device: DeviceChoice
    provider_options: Mapping[str, str]
    files: Mapping[str, OptionFile]
    """Files that options refer to, by option. The values in `provider_options` are the staged names of these files."""
    library: Path | None
    """Plugin library to register. None for the library in the EP's package."""
    unkeyed: frozenset[str]
    """Options that do not affect the compiled files. They are not part of the key."""
    only_compiling: frozenset[str] = frozenset()
    """Options that affect only the compile. Sessions that run the compiled model ignore these options."""

    @property
    def weightless_support(self) -> frozenset[str | None]:
        """Support of weightless contexts by the types of devices that the EP may use. None means that it is unknown."""
        kinds = (self.device.type,) if self.device.type is not None else self.entry.devices
        return frozenset(self.entry.weightless.get(kind) for kind in kinds)

    @property
    def lasting_options(self) -> dict[str, str]:
        """Options that outputs list: all except those in `only_compiling`."""
        return {name: value for name, value in self.provider_options.items() if name not in self.only_compiling}

    @property
    def binary_target(self) -> str | None:
        """Hardware target that the context binary should contain. None if the catalog has no rule for it."""
        return self.entry.binary_target(self.provider_options)


class PlannedTarget(Struct, frozen=True, dict=True):
    """Target with valid EPs, in order of preference, and valid session keys."""

    name: str
    toolchain: ToolchainSpec
    eps: tuple[PlannedEp, ...]
    session_options: Mapping[str, str]
    session_files: Mapping[str, OptionFile]
    """Files that session keys refer to, by key."""
    unkeyed: frozenset[str]
    """Session keys that do not affect the compiled files. They are not part of the key."""
    environment: Mapping[str, str]
    unchecked: tuple[str, ...]
    """Options and session keys that the recipe allows although the catalog or the pinned release does not know them."""
    allow_nondeterminism: bool = False
    """True if the recipe allows a repeated compile to write different bytes."""
    where: Position | None = None
    """Position of the target's definition in the recipe."""
    old_runtime: str | None = None
    """Pinned release of ONNX Runtime if it lacks ModelCompiler, so that a session must compile. None for other releases."""
    run_options: Mapping[str, str] = field(default_factory=dict)
    """Configuration entries of each run of a compiled model. They are not part of the key."""

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all fields of the target and of the catalog entries of its EPs. It is the same in every process."""
        eps = [[ep.entry.fingerprint, *_list_fields(ep, without="entry")] for ep in self.eps]
        return hash_values([*_list_fields(self, without="eps"), eps])

    @property
    def title(self) -> str:
        """Names of the EPs, for messages."""
        return ", ".join(ep.entry.ep for ep in self.eps)

    @property
    def one_binary(self) -> bool:
        """True if the members of a sharing group have one common context binary."""
        return all(ep.entry.sharing.binaries == "one" for ep in self.compiling)

    @cached_property
    def compiling(self) -> tuple[PlannedEp, ...]:
        """EPs that compile. This excludes the CPU EP, which runs the nodes that no other EP took."""
        return tuple([ep for ep in self.eps if ep.entry.sources])

    @property
    def writes_diagnostics(self) -> bool:
        """True if an option or a session key makes the compile write files beside the compiled models."""
        session = (list_session_keys().options.get(name) for name in self.session_options)
        options = (ep.entry.options.get(name) for ep in self.eps for name in ep.provider_options)
        return any(option is not None and option.diagnostic for option in chain(session, options))

    @property
    def weightless_key(self) -> str | None:
        """Session key that requests contexts without weights, or None."""
        return next((key for key in WEIGHTLESS_KEYS if self.session_options.get(key, "0") != "0"), None)

    @property
    def may_use_cpu(self) -> bool:
        """True unless a session key forbids CPU fallback."""
        return self.session_options.get(NO_FALLBACK) != "1"

    @property
    def graph_optimization_level(self) -> GraphOptimization:
        """Default graph optimization level: the catalog's level for the first EP that compiles."""
        return self.compiling[0].entry.graph_optimization_level if self.compiling else "disable_all"

    @property
    def leaves_to_cpu(self) -> bool:
        """True if the last EP of the target takes every node, which allows CPU fallback."""
        return self.eps[-1].entry.takes_every_node

    @property
    def known_differences(self) -> tuple[KnownDifference, ...]:
        """Known differences between the artifacts of repeated compiles, from the catalog. There may be unknown differences."""
        return tuple(row for ep in self.compiling for row in ep.entry.find_known_differences(ep.provider_options))

    def known_to_differ(self, *, allow_nondeterminism: bool) -> str | None:
        """Return the known reasons, as clauses, why a repeated compile writes different bytes, or None if no reason is known.

        `allow_nondeterminism` is True if the recipe accepts such differences for the target or for the compiled group.
        """
        accepted = (_ACCEPTED,) if allow_nondeterminism else ()
        return "; ".join(dict.fromkeys((*(row.why for row in self.known_differences), *accepted))) or None

    def limitations(self, reported: str, act: Literal["compile", "load"]) -> Iterator[tuple[str, Limitation]]:
        """Yield each known limitation that explains a failed compile or load, with the name of the EP or `ONNX Runtime`.

        `reported` is the text from `quote_report`.
        """
        for ep in self.eps:
            for limitation in ep.entry.cannot:
                if limitation.shows(reported, act, ep.device.type, ep.provider_options):
                    yield ep.entry.ep, limitation
        for limitation in list_session_keys().cannot:
            if limitation.shows(reported, act, None, {}):
                yield "ONNX Runtime", limitation

    @property
    def option_files(self) -> tuple[OptionFile, ...]:
        return (*(file for ep in self.eps for file in ep.files.values()), *self.session_files.values())

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that options and session keys refer to, and the user's plugin libraries."""
        named = (file.path for file in self.option_files)
        return (*named, *(ep.library for ep in self.eps if ep.library))


def _list_fields(value: Struct, without: str) -> list[Any]:
    """Return the values of all fields except the field `without`. Sets are sorted, because they have no order."""
    found = (getattr(value, name) for name in value.__struct_fields__ if name != without)
    return [sorted(item) if isinstance(item, frozenset) else item for item in found]
