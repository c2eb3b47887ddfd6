"""Catalog of EPs, loaded from epbuild's data files and users' files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.catalog.entries import EpEntry, SessionKeys, read_entry, read_session_keys
from epbuild.catalog.normalize import UnknownName
from epbuild.catalog.options import Option
from epbuild.catalog.userfile import BadCatalog, load_catalog
from epbuild.core.errors import suggest_nearest

CPU_EP = "CPUExecutionProvider"
"""EP that every ONNX Runtime contains. It runs the nodes that no other EP takes, and compiles nothing."""
SUFFIX = "ExecutionProvider"
"""Suffix of EP names in ONNX Runtime."""

_DATA = Path(__file__).parent / "data"
_SESSION = "session"
_LIBRARY_KEYS = Path(__file__).parent / "session_keys.toml"


class Catalog(Struct, frozen=True):
    """Catalog of EPs. Entries in `added` take precedence over epbuild's own entries."""

    added: tuple[EpEntry, ...] = ()

    @classmethod
    def with_files(cls, paths: Iterable[Path]) -> Catalog:
        """Return epbuild's catalog with the entries of users' catalog files added. Raises BadCatalog for an invalid file."""
        added: list[EpEntry] = []
        for path in paths:
            new = load_catalog(path)
            for old in added:
                if old.ep == new.ep and (
                    not (old.distributions or new.distributions) or set(old.distributions) & set(new.distributions)
                ):
                    raise BadCatalog(
                        path, "ep", f"{old.user_file} already describes the EP '{new.ep}' for the same Python packages"
                    )
            added.append(new)
        return cls(tuple(added))

    def known_eps(self) -> tuple[str, ...]:
        """Return the names of all EPs with an entry, sorted."""
        return tuple(sorted({*_read_stems(), *(entry.ep for entry in self.added)}))

    def entries_for(self, ep: str) -> tuple[EpEntry, ...]:
        """Return the entries of an EP, one for each packaging. The default packaging is first. Raises KeyError for an unknown EP."""
        added = tuple(entry for entry in self.added if entry.ep == ep)
        own = _load_entries(ep) if ep in _read_stems() else ()
        if not added and not own:
            raise KeyError(ep)
        return (*added, *own)

    def entry(self, ep: str, distributions: Iterable[str] = ()) -> EpEntry:
        """Return the EP's entry for the packaging that one of `distributions` contains.

        If none of them contains the EP, return the entry for the default packaging. Raises KeyError for an unknown EP.
        """
        entries, named = self.entries_for(ep), set(distributions)
        return next((entry for entry in entries if not named.isdisjoint(entry.distributions)), entries[0])

    def find_source_entry(self, source: str | None) -> EpEntry | None:
        """Return the entry of the EP that accepts EPContext nodes with this `source`, or None."""
        return next((found for found in map(self.entry, self.known_eps()) if found.has_source(source)), None)

    def name_source_ep(self, source: str | None) -> str | None:
        """Return the name of the EP that accepts EPContext nodes with this `source`, or `source` if no known EP does."""
        found = self.find_source_entry(source)
        return source if found is None else found.ep

    def genai_provider(self, ep: str) -> str:
        """Return the EP's name in onnxruntime-genai.

        Return an empty string if genai does not know the EP, and `ep` if the catalog has no other name.
        """
        named = self.entries_for(ep)[0].genai_provider if ep in self.known_eps() else list_session_keys().genai_providers.get(ep)
        return ep if named is None else named

    def quantized_io_options(self) -> dict[str, str]:
        """Return, by EP, the option that makes the EP compile QuantizeLinear and DequantizeLinear at a model's inputs and outputs."""
        entries = (entry for ep in self.known_eps() for entry in self.entries_for(ep))
        return {entry.ep: entry.quantized_io_option for entry in entries if entry.quantized_io_option is not None}


BUILT_IN = Catalog()


known_eps, entries_for, entry = BUILT_IN.known_eps, BUILT_IN.entries_for, BUILT_IN.entry
find_source_entry, name_source_ep = BUILT_IN.find_source_entry, BUILT_IN.name_source_ep
"""Queries of the built-in catalog."""


@cache
def get_full_name(short: str) -> str | None:
    """Return ONNX Runtime's name of an EP, given its short name such as `qnn`. Return None if no EP has that short name.

    An EP's short names are the stems of its data files.
    """
    return next((ep for ep, stems in _read_stems().items() if short in stems), None)


def get_short_name(ep: str) -> str:
    """Return the short name of an EP in epbuild's own catalog. All packagings of the EP have the same short name.

    Raises KeyError for an unknown EP.
    """
    return min(_read_stems()[ep], key=len)


@cache
def list_session_keys() -> SessionKeys:
    """Return the session keys that the catalog describes, and the keys found in the libraries of ONNX Runtime releases."""
    return read_session_keys(_read_data(_SESSION), _read_toml(_LIBRARY_KEYS))


@cache
def read_session_revision() -> int:
    """Return the revision of the session keys. Read only the first line of their file, which contains it."""
    return int(_read_first_line(_DATA / f"{_SESSION}.toml").partition("=")[2])


def find_session_key(name: str) -> Option:
    """Return the session key `name`. Raises UnknownName if the key is unknown, or if a recipe may not set it."""
    keys = list_session_keys()
    if name in keys.options:
        return keys.options[name]
    if name in keys.reserved:
        raise UnknownName(f"the session key '{name}' is set by epbuild itself: {keys.reserved[name]}", reserved=True)
    namespaced = re.match(r"ep\.([a-z0-9]+executionprovider)\.(.+)", name)
    if namespaced:
        message = f"the session key '{name}' is reserved: ONNX Runtime uses it to pass on a provider option"
        raise UnknownName(message, f"Write '{namespaced[2]}' under the target's provider_options.", reserved=True)
    raise UnknownName(f"ONNX Runtime has no session key '{name}'", suggest_nearest(name, keys.known))


def find_run_option(name: str) -> Option:
    """Return the run option `name`. Raises UnknownName if the option is unknown."""
    options = list_session_keys().run_options
    if name in options:
        return options[name]
    raise UnknownName(f"ONNX Runtime has no run option '{name}'", suggest_nearest(name, options))


@cache
def _read_stems() -> dict[str, tuple[str, ...]]:
    """Return the stems of the data files, by EP. Read only the first line of each file, which names the EP."""
    found: dict[str, list[str]] = {}
    for path in sorted(_DATA.glob("*.toml")):
        if path.stem == _SESSION:
            continue
        found.setdefault(_read_first_line(path).partition('"')[2].partition('"')[0], []).append(path.stem)
    return {ep: tuple(stems) for ep, stems in found.items()}


@cache
def _load_entries(ep: str) -> tuple[EpEntry, ...]:
    return tuple(sorted((read_entry(_read_data(stem)) for stem in _read_stems()[ep]), key=lambda entry: not entry.default))


def _read_first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline()


def _read_data(stem: str) -> dict[str, Any]:
    return _read_toml(_DATA / f"{stem}.toml")


def _read_toml(path: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(path.read_text(encoding="utf-8"))
