"""The catalog: what is known of each EP, from epbuild's data and the user's files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.catalog.entries import EpEntry, SessionKeys, read_entry, read_session_keys
from epbuild.catalog.facts import ContextChanges
from epbuild.catalog.normalize import UnknownName
from epbuild.catalog.options import Option
from epbuild.catalog.userfile import BadCatalog, load_catalog
from epbuild.core.errors import nearest

CPU_EP = "CPUExecutionProvider"
"""The EP that every ONNX Runtime has, which runs what no other EP takes and compiles nothing."""
SUFFIX = "ExecutionProvider"
"""How ONNX Runtime's names of EPs end."""

_DATA = Path(__file__).parent / "data"
_SESSION = "session"


class Catalog(Struct, frozen=True):
    """epbuild's own entries, and `added` ones, which come first where both know an EP."""

    added: tuple[EpEntry, ...] = ()

    @classmethod
    def with_files(cls, paths: Iterable[Path]) -> Catalog:
        """The catalog with a user's own files; raises BadCatalog."""
        added: list[EpEntry] = []
        for path in paths:
            new = load_catalog(path)
            for old in added:
                if old.ep == new.ep and (
                    not (old.distributions or new.distributions) or set(old.distributions) & set(new.distributions)
                ):
                    raise BadCatalog(path, "ep", f"'{new.ep}' in the same packaging is already described by {old.user_file}")
            added.append(new)
        return cls(tuple(added))

    def known_eps(self) -> tuple[str, ...]:
        """The names of all EPs that have an entry, sorted."""
        return tuple(sorted({*_stems(), *(entry.ep for entry in self.added)}))

    def entries_for(self, ep: str) -> tuple[EpEntry, ...]:
        """Every packaging of an EP, the one that is meant by default first; raises KeyError for an EP that is not known."""
        added = tuple(entry for entry in self.added if entry.ep == ep)
        own = _own_entries(ep) if ep in _stems() else ()
        if not added and not own:
            raise KeyError(ep)
        return (*added, *own)

    def entry(self, ep: str, distributions: Iterable[str] = ()) -> EpEntry:
        """The entry of an EP by its ONNX Runtime name, in the packaging that one of `distributions` brings; raises KeyError.

        Where none of them brings one, the packaging that is meant by default.
        """
        entries, named = self.entries_for(ep), set(distributions)
        return next((entry for entry in entries if named & set(entry.distributions)), entries[0])

    def context_changes(self) -> dict[str, ContextChanges]:
        """What each EP lets one change around its EPContext nodes, by what they have as `source`."""
        entries = (entry for ep in self.known_eps() for entry in reversed(self.entries_for(ep)))
        return {source: entry.context_changes for entry in entries for source in entry.sources}

    def genai_provider(self, ep: str) -> str:
        """onnxruntime-genai's name of an EP, which is empty where it does not know it; of an EP that is not known, ONNX Runtime's."""
        named = self.entries_for(ep)[0].genai_provider if ep in self.known_eps() else session_keys().genai_providers.get(ep)
        return ep if named is None else named

    def quantized_io_options(self) -> dict[str, str]:
        """The EPs that compile a model's own QuantizeLinear and DequantizeLinear by an option, and that option."""
        entries = (entry for ep in self.known_eps() for entry in self.entries_for(ep))
        return {entry.ep: entry.quantized_io_option for entry in entries if entry.quantized_io_option is not None}


BUILT_IN = Catalog()


known_eps, entries_for, entry = BUILT_IN.known_eps, BUILT_IN.entries_for, BUILT_IN.entry
"""What is asked of the built-in catalog alone."""


def known_environments(entries: Iterable[EpEntry]) -> str:
    """Return a sentence on the toolchains that provide an EP, in any of these packagings: those known to work, else its packages."""
    packagings = tuple(entries)
    if starts := [f"`{entry.start.environment}`" for entry in packagings if entry.start is not None]:
        return f"Known to work: {' or '.join(starts)}."
    return f"It comes in {' or '.join(dict.fromkeys(name for entry in packagings for name in entry.distributions))}."


@cache
def session_keys() -> SessionKeys:
    return read_session_keys(_read_data(_SESSION))


def find_session_key(name: str) -> Option:
    """The session key of that name; raises UnknownName for one that is not known, or that is not the recipe's to set."""
    keys = session_keys()
    if name in keys.options:
        return keys.options[name]
    if name in keys.reserved:
        raise UnknownName(f"the session key '{name}' is set by epbuild itself: {keys.reserved[name]}", reserved=True)
    namespaced = re.match(r"ep\.([a-z0-9]+executionprovider)\.(.+)", name)
    if namespaced:
        message = f"the session key '{name}' is how ONNX Runtime passes a provider option on"
        raise UnknownName(message, f"Write '{namespaced[2]}' among the target's provider_options.", reserved=True)
    raise UnknownName(f"ONNX Runtime has no session key '{name}'", nearest(name, keys.known))


@cache
def _stems() -> dict[str, tuple[str, ...]]:
    """The data files of each EP. Only the first line of each is read: it names the EP."""
    found: dict[str, list[str]] = {}
    for path in sorted(_DATA.glob("*.toml")):
        if path.stem == _SESSION:
            continue
        with path.open(encoding="utf-8") as file:
            found.setdefault(file.readline().partition('"')[2].partition('"')[0], []).append(path.stem)
    return {ep: tuple(stems) for ep, stems in found.items()}


@cache
def _own_entries(ep: str) -> tuple[EpEntry, ...]:
    return tuple(sorted((read_entry(_read_data(stem)) for stem in _stems()[ep]), key=lambda entry: not entry.default))


def _read_data(stem: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads((_DATA / f"{stem}.toml").read_text(encoding="utf-8"))
