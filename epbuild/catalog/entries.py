"""Catalog entries of EPs, and the session keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import asdict

from epbuild.catalog import facts
from epbuild.catalog.numbers import Numbers, Thresholds
from epbuild.catalog.options import Option, read_options
from epbuild.catalog.rows import read_row
from epbuild.core.digest import document_digest

_DIGEST_FORMAT = 1
_NO_REASON = "the catalog does not state that this EP can share weights"


class EpEntry(Struct, frozen=True, kw_only=True, dict=True):
    """All that epbuild knows of one EP in one packaging."""

    ep: str
    short: str
    revision: int = 1
    kind: Literal["plugin", "provider"]
    module: str
    sources: tuple[str, ...]
    """What its EPContext nodes have as `source`; the first is what it writes."""
    devices: tuple[str, ...] = ()
    device_option: str | None = None
    """The option that names the device of an EP that is built in; None: there is one kind, or an OrtEpDevice is chosen."""
    output_depends_on_host: bool = True
    host: facts.HostDependence = field(default_factory=facts.HostDependence)
    """What of the host it depends on, if it does: by default, as long as nobody has looked, on which CPU that is."""
    booleans: tuple[str, str] = ("0", "1")
    sharing: facts.Sharing
    options: Mapping[str, Option]
    names: Mapping[str, Mapping[str, str]]
    """For an option whose values have several spellings: the spelling, and the one that stands for all."""
    target_pattern: str | None = None
    """A regular expression whose first group is the target's name inside a context binary."""
    target_option: str | None = None
    """The option that names the target that was asked for."""
    description: str = ""
    distributions: tuple[str, ...] = ()
    """Every distribution that carries this packaging."""
    default: bool = True
    """Whether this packaging is meant when nothing names one of several."""
    tables: Mapping[str, tuple[facts.Known, ...]] = field(default_factory=dict)
    """For an option that takes names: all that are known."""
    refusals: tuple[facts.Refusal, ...] = ()
    cannot: tuple[facts.Limitation, ...] = ()
    binary_name: str | None = None
    """How the EP names a context binary; `{stem}` is the output model's name without its last extension."""
    virtual_devices: tuple[str, ...] = ()
    """The types of the virtual devices that the EP offers."""
    emulator_devices: tuple[str, ...] = ()
    """The types of devices that only stand for another one: what runs on them runs in an emulator."""
    metadata: Mapping[str, tuple[facts.Metadata, ...]] = field(default_factory=dict)
    """Device metadata that distinguishes an EP's devices, and the values that are known."""
    compatibility_pattern: str | None = None
    """A regular expression for the EP's `ep_compatibility_info`, with a named group for each field."""
    compatibility_versions: tuple[str, ...] = ()
    """The fields that are about the toolchain and not about the target."""
    user_file: str | None = None
    """The catalog file that this entry was read from; None for one of epbuild's own."""
    reproducible: facts.Reproducibility | None = None
    """None: nobody has tried, so that nothing is claimed."""
    node_names: facts.NodeNames | None = None
    """None: it is not known whether the EP heeds a prefix for the names of its nodes, nor whether they can be renamed."""
    start: facts.Start | None = None
    """None: a first recipe for it has to be written by hand."""
    takes_every_node: bool = False
    """Whether it leaves no node to the EPs that come after it."""
    numbers: Numbers = field(default_factory=Numbers)
    graph_optimization_level: Literal["disable_all", "basic", "extended", "layout", "all"] = "disable_all"
    """How far ONNX Runtime optimises a graph before this EP is given it, where the recipe does not set it."""
    node_log: facts.NodeLogRules | None = None
    """None: the EP logs nothing about single nodes, or nobody knows how."""
    static_shapes: facts.StaticShapes | None = None
    """None: it takes open dimensions, or nobody has tried."""
    context_changes: facts.ContextChanges = field(default_factory=facts.ContextChanges)
    genai_provider: str | None = None
    """onnxruntime-genai's name of it; empty: genai does not know it. None: its name is ONNX Runtime's."""
    out_of_memory: str | None = None
    """Regular expression for what it reports when it lacks memory, or refuses a graph as if it did."""
    quantized_io_option: str | None = None
    """The option by which it compiles the model's own QuantizeLinear and DequantizeLinear too."""

    @cached_property
    def digest(self) -> str:
        """What names the part of it that a result depends on and that no other part of an action key shows.

        Options, their spellings and the SoCs are left out: they reach the EP as canonical strings, which are in the key themselves, so
        that a new row or a better meaning voids nothing. `revision` is in: it is raised by hand to have everything compiled again.
        """
        document = {
            "format": _DIGEST_FORMAT,
            "revision": self.revision,
            "ep": self.ep,
            "kind": self.kind,
            "module": self.module,
            "sources": list(self.sources),
            "devices": list(self.devices),
            "booleans": list(self.booleans),
            "output_depends_on_host": self.output_depends_on_host,
            "sharing": {key: value for key, value in asdict(self.sharing).items() if key in {"possible", "binaries", "weights"}},
        }
        return document_digest(document)

    @property
    def distribution(self) -> str:
        """The first of `distributions`; empty where there is none."""
        return self.distributions[0] if self.distributions else ""

    @cached_property
    def _concerned(self) -> dict[frozenset[str], tuple[facts.Refusal, ...]]:
        return {}

    def refusals_for(self, names: frozenset[str]) -> tuple[facts.Refusal, ...]:
        """The refusals that concern options of these names; found once for all the targets that set the same ones."""
        if names not in self._concerned:
            self._concerned[names] = tuple(row for row in self.refusals if row.concerns(names))
        return self._concerned[names]

    def known_differences(self, options: Mapping[str, str]) -> tuple[facts.KnownDifference, ...]:
        """In what a target with these canonical options is known to differ when it is compiled again."""
        return tuple(row for row in self.reproducible.exceptions if row.matches(options)) if self.reproducible else ()

    def binary_target(self, options: Mapping[str, str]) -> str | None:
        """The target that a context binary compiled with these canonical options names; None where nobody knows."""
        asked = options.get(self.target_option or "", "")
        rows = self.tables.get(self.target_option or "", ())
        known = {row.canonical: row.facts.get("binary", row.name) for row in rows}
        # A name that the catalog does not know is what the EP was given, and writes.
        names = [known.get(one, None if one.isdigit() else one) for one in asked.split(",") if one]
        return ",".join(name for name in names if name) if names and all(names) else None

    def compatibility(self, text: str) -> Mapping[str, str] | None:
        """The fields of a compiled model's `ep_compatibility_info`, each option's value in its canonical spelling; None if unreadable."""
        match = re.search(self.compatibility_pattern, text) if self.compatibility_pattern else None
        if match is None:
            return None
        fields = {name: value for name, value in match.groupdict().items() if value is not None}
        return {
            name: ",".join(self.names[name].get(part, part) for part in value.split(",")) if name in self.names else value
            for name, value in fields.items()
        }


class SessionKeys(Struct, frozen=True, dict=True):
    """What is known of ONNX Runtime itself: the session keys that a recipe may set, those that epbuild sets, and what it cannot do."""

    revision: int
    options: Mapping[str, Option]
    reserved: Mapping[str, str]
    longest_key: int = 1024
    longest_value: int = 2048
    cannot: tuple[facts.Limitation, ...] = ()
    genai_providers: Mapping[str, str] = field(default_factory=dict)
    """onnxruntime-genai's names of EPs that have no entry of their own."""

    @cached_property
    def known(self) -> tuple[str, ...]:
        """Every key that is known, the reserved ones too, sorted."""
        return tuple(sorted({*self.options, *self.reserved}))


def read_entry(document: Mapping[str, Any], user_file: str | None = None) -> EpEntry:
    """Read an entry from a catalog document, which must satisfy `catalog.schema.json`."""
    origin = document["origin"]
    tables = {option: _table(table, origin) for option, table in document.get("names", {}).items()}
    binary, compatibility = document.get("binary", {}), document.get("compatibility", {})
    sections: dict[str, Any] = {
        name: read_row(kind, document[name], origin)
        for name, kind in (
            ("context_changes", facts.ContextChanges),
            ("node_log", facts.NodeLogRules),
            ("node_names", facts.NodeNames),
            ("start", facts.Start),
            ("static_shapes", facts.StaticShapes),
        )
        if name in document
    }
    given: dict[str, Any] = {
        "module": document.get("module", "onnxruntime" if document["kind"] == "provider" else ""),
        "sources": document.get("sources", [document["ep"]]),
        "sharing": _sharing(document.get("sharing", {})),
        "options": read_options(document.get("options", {}), origin),
        "names": {
            option: {spelling: row.canonical for row in rows for spelling in (row.name, *row.spellings)}
            for option, rows in tables.items()
        },
        "tables": tables,
        "refusals": (
            *(read_row(facts.Refusal, row, origin) for row in document.get("refuse", ())),
            *_disagreements(document.get("names", {}), tables),
        ),
        "cannot": _limitations(document),
        "binary_name": binary.get("name"),
        "target_pattern": binary.get("target_pattern"),
        "target_option": binary.get("target_option"),
        "compatibility_pattern": compatibility.get("pattern"),
        "compatibility_versions": compatibility.get("versions", []),
        "metadata": {
            key: tuple(read_row(facts.Metadata, row) for row in rows) for key, rows in document.get("metadata", {}).items()
        },
        "numbers": _numbers(document.get("numbers", {})),
        "reproducible": _reproducibility(document["reproducible"], origin) if "reproducible" in document else None,
        "host": _host(document.get("host", {})),
        "user_file": user_file,
    }
    return read_row(EpEntry, document, **sections, **given)


def read_session_keys(document: Mapping[str, Any]) -> SessionKeys:
    return read_row(
        SessionKeys,
        document,
        options=read_options(document["options"], document["origin"]),
        longest_key=document["limits"]["key"],
        longest_value=document["limits"]["value"],
        cannot=_limitations(document),
    )


def _host(section: Mapping[str, Any]) -> facts.HostDependence:
    drivers = tuple(read_row(facts.Driver, row) for row in section.get("drivers", ()))
    return read_row(facts.HostDependence, section, drivers=drivers)


def _sharing(section: Mapping[str, Any]) -> facts.Sharing:
    reason = section.get("reason", "" if section.get("possible") else _NO_REASON)
    refusals = tuple(read_row(facts.SharingRefusal, row) for row in section.get("refused_values", ()))
    return read_row(facts.Sharing, section, reason=reason, refusals=refusals)


def _numbers(section: Mapping[str, Any]) -> Numbers:
    given: dict[str, Any] = {name: read_row(Thresholds, section[name]) for name in ("floats", "quantised") if name in section}
    return read_row(Numbers, section, **given)


def _reproducibility(section: Mapping[str, Any], origin: str) -> facts.Reproducibility:
    known = section.get("origin", origin)
    exceptions = tuple(read_row(facts.KnownDifference, row, known) for row in section.get("except", ()))
    return read_row(facts.Reproducibility, section, known, exceptions=exceptions)


def _limitations(document: Mapping[str, Any]) -> tuple[facts.Limitation, ...]:
    rows = document.get("cannot", ())
    return tuple(read_row(facts.Limitation, row, document["origin"], of=row.get("limit_of", "machine")) for row in rows)


def _table(table: Mapping[str, Any], origin: str) -> tuple[facts.Known, ...]:
    words = {"name", "canonical", "spellings", "origin"}
    return tuple(
        read_row(
            facts.Known,
            {"canonical": row["name"], "spellings": (), **row},
            table.get("origin", origin),
            facts={key: value for key, value in row.items() if key not in words},
        )
        for row in table["rows"]
    )


def _disagreements(tables: Mapping[str, Any], known: Mapping[str, tuple[facts.Known, ...]]) -> Iterable[facts.Refusal]:
    """A refusal for each known name and each option that must agree with its table, such as a SoC and its architecture."""
    for option, table in tables.items():
        for other, rule in table.get("implies", {}).items():
            for row in known[option]:
                if rule["fact"] not in row.facts:
                    continue
                right = row.facts[rule["fact"]]
                allowed = "|".join(re.escape(value) for value in (right, *rule.get("neutral", ())))
                reason = f"{row.name} has {other} {right}; {rule['reason']}"
                yield facts.Refusal({option: f"^{re.escape(row.canonical)}$", other: f"^(?!(?:{allowed})$)"}, reason, row.origin)
