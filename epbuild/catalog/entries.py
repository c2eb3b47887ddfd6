"""Catalog entries of EPs, and session keys of ONNX Runtime.

The fields of the classes mirror the keys of the TOML files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct, field

from epbuild.catalog import facts
from epbuild.catalog.options import Option
from epbuild.core.digest import hash_document, hash_values
from epbuild.core.records import convert

_DIGEST_FORMAT = 1
_UNKNOWN_SHARING = facts.Sharing(reason="the catalog does not state that this EP can share weights")


class EpEntry(Struct, frozen=True, kw_only=True, dict=True):
    """Catalog entry of one EP in one packaging."""

    ep: str
    description: str = ""
    origin: str
    revision: int = 1
    default: bool = True
    """True if this is the default packaging of an EP that has several packagings."""
    short: str
    kind: Literal["plugin", "provider"]
    module: str
    distributions: tuple[str, ...] = ()
    """Python distributions that contain this packaging."""
    sources: tuple[str, ...]
    """Values of `source` that the EP accepts in EPContext nodes. The EP writes the first value."""
    sources_ignore_case: bool = False
    """True if the EP accepts the values of `sources` in upper and lower case."""
    devices: tuple[str, ...] = ()
    virtual_devices: tuple[str, ...] = ()
    """Types of the virtual devices that the EP offers."""
    emulator_devices: tuple[str, ...] = ()
    """Types of devices that emulate another device."""
    device_option: str | None = None
    """Option that selects the device of a built-in EP.

    None if the EP has only one kind of device, or if the device is selected as an OrtEpDevice.
    """
    output_depends_on_host: bool = True
    takes_every_node: bool = False
    """True if the EP takes every node, so that later EPs in the list get no nodes."""
    weightless: Mapping[str, Literal["none", "external"]] = field(default_factory=dict)
    """Support of weightless contexts, by device type. Untested device types are missing."""
    no_packages: str | None = None
    """Reason why no ONNX Runtime that has this EP opens model packages, as a clause. None if one does."""
    genai_provider: str | None = None
    """Name of the EP in onnxruntime-genai. Empty if genai does not know the EP; None if the name equals ONNX Runtime's."""
    quantized_io_option: str | None = None
    """Option that makes the EP compile QuantizeLinear and DequantizeLinear nodes at a model's inputs and outputs."""
    out_of_memory: str | None = None
    """Regular expression for the message with which the EP reports a lack of memory. The EP may also reject a graph with it."""
    graph_optimization_level: Literal["disable_all", "basic", "extended", "layout", "all"] = "disable_all"
    """Level of the graph optimization that ONNX Runtime runs before the EP, unless the recipe sets another level."""
    booleans: tuple[str, str] = ("0", "1")
    """Strings that the EP uses for false and true."""

    host: facts.HostDependence = field(default_factory=facts.HostDependence)
    sharing: facts.Sharing = _UNKNOWN_SHARING
    binary: facts.Binary = field(default_factory=facts.Binary)
    compatibility: facts.Compatibility = field(default_factory=facts.Compatibility)
    start: facts.Start | None = None
    """Values for a new recipe. None if users have to write the recipe by hand."""
    static_shapes: facts.StaticShapes | None = None
    """Requirement of static shapes. None if the EP supports symbolic dimensions, or if support was never tested."""
    dynamic_quantization: facts.DynamicQuantization | None = None
    """Unsupported operators of dynamic quantization. None if all are supported, or if support was never tested."""
    context_changes: facts.ContextChanges = field(default_factory=facts.ContextChanges)
    node_names: facts.NodeNames | None = None
    """Rules for renaming EPContext nodes. None if nothing is known."""
    numbers: facts.Numbers = field(default_factory=facts.Numbers)
    node_log: facts.NodeLogRules | None = None
    """Format of log entries about single nodes. None if the EP writes no such entries, or if their format is unknown."""
    reproducible: facts.Reproducibility | None = None
    """Conditions under which two compiles of the same inputs produce the same bytes. None if this was never tested."""

    metadata: Mapping[str, tuple[facts.Metadata, ...]] = field(default_factory=dict)
    """Known values of the device metadata keys that distinguish the EP's devices."""
    cannot: tuple[facts.Limitation, ...] = ()
    refuse: tuple[facts.Refusal, ...] = ()
    rewrites: tuple[facts.Rewrite, ...] = ()
    """Patterns that the preparation `rewrite` replaces."""
    names: Mapping[str, facts.NameTable] = field(default_factory=dict)
    """Known values of options of type `name`, by option."""
    options: Mapping[str, Option] = field(default_factory=dict)

    user_file: str | None = None
    """Name of the user's catalog file. None for a built-in entry."""

    @cached_property
    def digest(self) -> str:
        """Digest of all facts that affect a result and are not elsewhere in an action key.

        Options, names and values are excluded, because the key contains them as canonical strings. A new row or a better
        description in the catalog file thus invalidates nothing. `revision` is included, so a higher revision recompiles everything.
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
            "sharing": {name: getattr(self.sharing, name) for name in ("possible", "binaries", "weights")},
        }
        return hash_document(document)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the whole entry."""
        return hash_values(self)

    def has_source(self, source: str | None) -> bool:
        """Return whether the EP accepts EPContext nodes with this `source`."""
        if source is None or not self.sources_ignore_case:
            return source in self.sources
        return source.casefold() in (known.casefold() for known in self.sources)

    @property
    def distribution(self) -> str:
        """First of `distributions`, or an empty string."""
        return self.distributions[0] if self.distributions else ""

    def canonical_names(self, option: str) -> Mapping[str, str]:
        """Return the canonical values of an option by spelling. The mapping is empty unless the option is of type `name`."""
        return self.names[option].canonical if option in self.names else {}

    @cached_property
    def refusals(self) -> tuple[facts.Refusal, ...]:
        """Rows of `refuse`, and one refusal for each rule by which a known name determines the value of another option."""
        return (*self.refuse, *self._build_name_refusals())

    def _build_name_refusals(self) -> Iterator[facts.Refusal]:
        for option, table in self.names.items():
            for other, rule in table.implies.items():
                for row in table.rows:
                    if (right := row.facts.get(rule.fact)) is None:
                        continue
                    allowed = "|".join(re.escape(value) for value in (right, *rule.neutral))
                    when = {option: f"^{re.escape(row.canonical)}$", other: f"^(?!(?:{allowed})$)"}
                    yield facts.Refusal(when, f"{row.name} has {other} {right}; {rule.reason}", row.origin)

    @cached_property
    def _refusals_by_names(self) -> dict[frozenset[str], tuple[facts.Refusal, ...]]:
        return {}

    def list_refusals_for(self, names: frozenset[str]) -> tuple[facts.Refusal, ...]:
        """Return the refusals that concern options with these names.

        The result is cached for all targets with the same options.
        """
        if names not in self._refusals_by_names:
            self._refusals_by_names[names] = tuple(row for row in self.refusals if row.concerns(names))
        return self._refusals_by_names[names]

    def find_known_differences(self, options: Mapping[str, str]) -> tuple[facts.KnownDifference, ...]:
        """Return the known differences between two compiles of a target with these canonical options."""
        exceptions = self.reproducible.exceptions if self.reproducible else ()
        return tuple(row for row in exceptions if facts.has_matching_options(row.when, options))

    def binary_target(self, options: Mapping[str, str]) -> str | None:
        """Return the name of the target in context binaries that are compiled with these canonical options.

        Return None if the name is unknown.
        """
        option = self.binary.target_option or ""
        rows = self.names[option].rows if option in self.names else ()
        known = {row.canonical: row.facts.get("binary", row.name) for row in rows}
        # The EP writes a name that the catalog does not know exactly as it was passed.
        names = [known.get(one, None if one.isdigit() else one) for one in options.get(option, "").split(",") if one]
        return ",".join(name for name in names if name) if names and all(names) else None

    def read_compatibility(self, text: str) -> Mapping[str, str] | None:
        """Return the fields of an `ep_compatibility_info`, with canonical option values. Return None if the format is wrong."""
        match = re.search(self.compatibility.pattern, text) if self.compatibility.pattern else None
        if match is None:
            return None
        fields: dict[str, str] = {}
        for name, value in match.groupdict().items():
            if value is not None:
                names = self.canonical_names(name)
                fields[name] = ",".join(names.get(part, part) for part in value.split(",")) if names else value
        return fields


class KeyLimits(Struct, frozen=True):
    """Maximum lengths of a session key and of its value."""

    key: int = 1024
    value: int = 2048


class SessionKeys(Struct, frozen=True, dict=True):
    """Session keys, run options and limitations of ONNX Runtime.

    Recipes may set `options` and `run_options`. Only epbuild sets `reserved` keys.
    """

    revision: int
    limits: KeyLimits
    options: Mapping[str, Option]
    reserved: Mapping[str, str]
    run_options: Mapping[str, Option]
    cannot: tuple[facts.Limitation, ...] = ()
    genai_providers: Mapping[str, str] = field(default_factory=dict)
    """Names in onnxruntime-genai, by EP, for EPs without a catalog entry."""

    @cached_property
    def known(self) -> tuple[str, ...]:
        """Names of all known keys, including reserved keys, sorted."""
        return tuple(sorted({*self.options, *self.reserved}))


def read_entry(document: Mapping[str, Any], user_file: str | None = None) -> EpEntry:
    """Return the entry in a catalog document, which must conform to `catalog.schema.json`."""
    origin = document["origin"]
    given = {
        "module": "onnxruntime" if document["kind"] == "provider" else "",
        "sources": [document["ep"]],
        **document,
        "user_file": user_file,
        "options": _complete_options(document.get("options", {}), origin),
        "names": {option: _complete_table(table, origin) for option, table in document.get("names", {}).items()},
        **{name: _add_origin(document[name], origin) for name in ("cannot", "refuse") if name in document},
    }
    for name in ("node_log", "node_names", "static_shapes", "dynamic_quantization", "reproducible"):
        if name in document:
            [given[name]] = _add_origin([document[name]], origin)
    if "reproducible" in given:
        section = given["reproducible"]
        given["reproducible"] = {**section, "except": _add_origin(section.get("except", ()), section["origin"])}
    return convert(given, EpEntry)


def read_session_keys(document: Mapping[str, Any], releases: Mapping[str, str]) -> SessionKeys:
    """Return the session keys of `session.toml` and of `releases`. `releases` maps a release to its keys, separated by white space."""
    origin, described = document["origin"], {*document["options"], *document["reserved"]}
    others = {
        name: {"type": "text", "output": "unknown", "origin": f"string in onnxruntime {release}", "meaning": "Not described."}
        for release, names in releases.items()
        for name in names.split()
        if name not in described
    }
    options = _complete_options({**document["options"], **others}, origin)
    cannot = _add_origin(document.get("cannot", ()), origin)
    run_options = _complete_options(document["run_options"], "doc onnxruntime_run_options_config_keys.h")
    return convert({**document, "options": options, "run_options": run_options, "cannot": cannot}, SessionKeys)


def _add_origin(rows: Any, origin: str) -> list[dict[str, Any]]:
    """Return the rows, with `origin` added to rows that have no origin."""
    return [{"origin": origin, **row} for row in rows]


def _complete_options(table: Mapping[str, Any], origin: str) -> dict[str, dict[str, Any]]:
    return {name: {"origin": origin, **row, "name": name} for name, row in table.items()}


def _complete_table(table: Mapping[str, Any], origin: str) -> dict[str, Any]:
    columns = {"name", "canonical", "spellings", "products", "origin"}
    rows = [
        {
            "canonical": row["name"],
            "spellings": (),
            "products": (),
            **row,
            "facts": {name: row[name] for name in row if name not in columns},
        }
        for row in table["rows"]
    ]
    return {**table, "rows": _add_origin(rows, table.get("origin", origin))}
