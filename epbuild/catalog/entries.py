"""What is known of an EP, and of session keys, as values; `read_entry` and `read_session_keys` make them out of a catalog document."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from epbuild.catalog.numbers import Numbers, read_numbers

OptionType = Literal["text", "choice", "boolean", "integer", "number", "size", "name", "list", "pattern", "file", "folder"]
Effect = Literal["measured", "documented", "unknown", "none"]
"""Whether an option changes what a compile writes, and how that is known. What is unknown counts as a change."""


@dataclass(frozen=True)
class Option:
    """One option of an EP, or one session key: what values it takes and whether they change what a compile writes."""

    name: str
    type: OptionType
    output: Effect
    meaning: str
    origin: str
    """Where this row comes from: `measured`, `doc <where>`, or `string in <library> <version>`."""
    values: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    pattern: str | None = None
    example: str | None = None
    default: str | None = None
    since: str | None = None
    """The first release that knows it: of the EP's own distributions, or of ONNX Runtime for a session key. None: not known, or all."""
    until: str | None = None
    """The last release that knows it, with all of its patch releases: `1.22` holds 1.22.1. None: it is still known."""
    runtime: bool = False
    """Only a session that runs the model reads it, so that it has no place in a compile."""
    inline: str | None = None
    """For a `file`: values of this form are the content itself, or a name that the EP looks up, and no path."""
    files_pattern: str | None = None
    """For a value that holds paths among other things: each match's first group is one."""
    case: Literal["upper", "lower"] | None = None
    compile_only: str | None = None
    """A regular expression for canonical values that only a compile takes: a session that runs what was compiled is not given them."""

    @property
    def changes_output(self) -> bool:
        """Whether the option's value belongs in an action key."""
        return self.output != "none"

    def only_compiling(self, value: str) -> bool:
        """Whether the canonical `value` is for the compile alone: dumps and their places, or what a session refuses that runs the model."""
        if self.compile_only is not None and re.search(self.compile_only, value):
            return True
        return not self.changes_output and not self.runtime

    def files(self, value: str) -> tuple[str, ...]:
        """The paths of the files that `value` names, whose content a compile depends on."""
        if self.files_pattern is not None:
            return tuple(match[1] for match in re.finditer(self.files_pattern, value))
        if self.type != "file" or not value or (self.inline is not None and re.search(self.inline, value)):
            return ()
        return (value,)

    def with_files(self, value: str, names: Sequence[str]) -> str:
        """`value` with other names for its files, in the order of `files`."""
        if not names:
            return value
        if self.files_pattern is None:
            return names[0]
        following = iter(names)

        def renamed(match: re.Match[str]) -> str:
            start, end = match.start(1) - match.start(), match.end(1) - match.start()
            return match[0][:start] + next(following) + match[0][end:]

        return re.sub(self.files_pattern, renamed, value)

    def known_in(self, version: str) -> bool:
        """Whether a release knows this option, as far as the catalog can tell; True for a version that cannot be read."""
        asked, first, last = _release(version), _release(self.since or ""), _release(self.until or "")
        if not asked:
            return True
        from_first = asked + (0,) * (len(first) - len(asked)) >= first  # 1.24 is 1.24.0
        return from_first and (not last or asked[: len(last)] <= last)

    @property
    def releases(self) -> str:
        """Which releases know this option, for a sentence: `since 1.21`, or `since 1.21 and until 1.30`; empty where all do."""
        bounds = {"since": self.since, "until": self.until}
        return " and ".join(f"{word} {version}" for word, version in bounds.items() if version is not None)


@dataclass(frozen=True)
class StaticShapes:
    """That an EP takes a node only where every size is known when it compiles; `why` is a clause."""

    why: str
    origin: str


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
    what: str = ""
    """What the members share and how, in a sentence."""
    weights: Literal["binary", "source"] = "binary"
    """Where shared weights are found: in the context binary, or in the source model's external data, which must be emitted too."""


@dataclass(frozen=True)
class Refusal:
    """A combination of options that an EP rejects, or accepts and misreads, and why."""

    when: Mapping[str, str]
    """Option and the regular expression that its canonical value must match."""
    absent: tuple[str, ...]
    """Options of which none may be there."""
    needs: tuple[str, ...]
    """Options of which at least one must be missing."""
    reason: str
    origin: str

    def concerns(self, names: frozenset[str]) -> bool:
        """Whether options of these names can be this combination, whatever their values."""
        missing = not self.needs or not names.issuperset(self.needs)
        return names.issuperset(self.when) and names.isdisjoint(self.absent) and missing

    def matches(self, options: Mapping[str, str]) -> bool:
        """Whether the canonical `options` are this combination."""
        return self.concerns(frozenset(options)) and self.has_values(options)

    def has_values(self, options: Mapping[str, str]) -> bool:
        """Whether `options`, whose names this combination concerns, have the values that it is about."""
        return all(re.search(pattern, options[name]) for name, pattern in self.when.items())


@dataclass(frozen=True)
class KnownDifference:
    """What is known to differ when a target is compiled again, and why."""

    why: str
    when: Mapping[str, str]
    """Option and the regular expression that its canonical value must match; none: every target."""
    by: Literal["timestamp"] | None
    """What alone differs; None: anything may."""
    origin: str

    def matches(self, options: Mapping[str, str]) -> bool:
        """Whether a target with these canonical options is one of those that differ."""
        return all(name in options and re.search(pattern, options[name]) for name, pattern in self.when.items())


@dataclass(frozen=True)
class Reproducibility:
    """What is known of compiling the same again with the same."""

    what: str
    """What gives the same bytes, or does not, in a sentence."""
    origin: str
    exceptions: tuple[KnownDifference, ...]


@dataclass(frozen=True)
class NodeNames:
    """How an EP that ignores `ep.context_node_name_prefix` finds its part of a context, and so which of its nodes can be renamed."""

    found_by: Literal["name", "partition_name"]
    """By `partition_name`: any node can be renamed. By its name: only one that is alone in its context, which is found without."""
    why: str
    """What becomes of other nodes, as a clause."""
    origin: str


@dataclass(frozen=True)
class Start:
    """What a first recipe for an EP holds: an environment that is known to work, and what tells its targets apart."""

    name: str
    """What `epbuild init` calls it."""
    packages: tuple[str, ...]
    interpreter: str | None
    """Of an environment that epbuild cannot make."""
    option: str | None
    metadata: str | None
    """The option, or the device's metadata, whose value a target is asked for; None of both: there is one target."""
    words: str
    """What that value is."""
    example: str
    options: Mapping[str, str]
    device: Mapping[str, str | bool]


@dataclass(frozen=True)
class Known:
    """One value of an option that has a table: its name, the other spellings that stand for it, and what is known of it."""

    name: str
    canonical: str
    """What the EP is given for it: its name, or a number where the EP does not know the name."""
    spellings: tuple[str, ...]
    facts: Mapping[str, str]
    origin: str


@dataclass(frozen=True)
class Metadata:
    """One value of a device's metadata key, such as an NPU's platform number."""

    value: str
    meaning: str


@dataclass(frozen=True)
class Limitation:
    """One thing that an EP cannot do, where, and why."""

    what: str
    why: str
    platforms: tuple[str, ...]
    """`linux`, `win32`, `darwin`; none: everywhere."""
    device: str | None
    symptom: str | None
    """A regular expression that finds this limitation in what the EP says when it fails."""
    origin: str
    when: Mapping[str, str] = field(default_factory=dict)
    """Option and the regular expression that its canonical value must match; none: whatever the options."""
    during: Literal["compile", "load"] | None = None
    """Where it shows; None: in both."""
    of: Literal["machine", "target", "model"] = "machine"
    """What it is that cannot: this machine, so that another one may; what is compiled for; or the model as it is, or as it is asked for."""
    hint: str | None = None
    """What to try, as sentences."""
    source_has: Literal["overridable initializers"] | None = None
    """What a source model has that this is about, so that it is refused before it is compiled."""
    stops: bool = False
    """Whether nothing at all can be compiled where this holds."""

    def holds(self, platform: str, device: str | None, options: Mapping[str, str]) -> bool:
        """Whether it holds on a `platform` (as `sys.platform`), for a device of a type (None: any) and these canonical options."""
        here = not self.platforms or platform in self.platforms
        concerned = self.device in (None, device)
        return here and concerned and all(name in options and re.search(rule, options[name]) for name, rule in self.when.items())

    def shows(self, said: str, act: Literal["compile", "load"], device: str | None, options: Mapping[str, str]) -> bool:
        """Whether this is why an act failed on this platform, by what was said, the type of device asked for and the canonical options."""
        return (
            self.symptom is not None
            and self.during in (None, act)
            and self.holds(sys.platform, self.device if device is None else device, options)
            and re.search(self.symptom, said) is not None
        )


@dataclass(frozen=True)
class NodeLogRules:
    """How an EP says of each node whether it takes it, as regular expressions for the lines of a log that holds all that it can say."""

    refused: str
    """Finds an entry about nodes that it does not take, which goes on for some lines."""
    node: str
    """Finds a node there: groups `operator` and `node`, its name."""
    reason: str
    """Finds why they are not taken: a group `reason`."""
    more: str
    """Finds any other line that belongs to the entry before it."""
    origin: str


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
    description: str = ""
    distributions: tuple[str, ...] = ()
    """Every distribution that carries this packaging; `distribution` is the first."""
    default: bool = True
    """Whether this packaging is meant when nothing says which of several."""
    tables: Mapping[str, tuple[Known, ...]] = field(default_factory=dict)
    """For an option that takes names: all that are known."""
    refusals: tuple[Refusal, ...] = ()
    cannot: tuple[Limitation, ...] = ()
    binary_name: str | None = None
    """How the EP names a context binary; `{stem}` is the output model's name without its last extension."""
    virtual_devices: tuple[str, ...] = ()
    """The types of the virtual devices that the EP offers."""
    metadata: Mapping[str, tuple[Metadata, ...]] = field(default_factory=dict)
    """Device metadata that tells an EP's devices apart, and the values that are known."""
    compatibility_pattern: str | None = None
    """A regular expression for the EP's `ep_compatibility_info`, with a named group for each field."""
    user_file: str | None = None
    """The catalog file that this entry was read from; None for one of epbuild's own."""
    reproducible: Reproducibility | None = None
    """None: nobody has tried, so that nothing is claimed."""
    node_names: NodeNames | None = None
    """None: it is not known whether the EP heeds a prefix for the names of its nodes, nor whether they can be renamed."""
    start: Start | None = None
    """None: a first recipe for it has to be written by hand."""
    takes_every_node: bool = False
    """Whether it leaves no node to the EPs that come after it."""
    numbers: Numbers = field(default_factory=Numbers)
    graph_optimization_level: Literal["disable_all", "basic", "extended", "layout", "all"] = "disable_all"
    """How far ONNX Runtime optimises a graph before this EP is given it, where the recipe does not say."""
    node_log: NodeLogRules | None = None
    """None: the EP says nothing of single nodes, or nobody knows how."""
    static_shapes: StaticShapes | None = None
    """None: it takes open dimensions, or nobody has tried."""

    @cached_property
    def _concerned(self) -> dict[frozenset[str], tuple[Refusal, ...]]:
        return {}

    def refusals_for(self, names: frozenset[str]) -> tuple[Refusal, ...]:
        """The refusals that concern options of these names; found once for all the targets that set the same ones."""
        if names not in self._concerned:
            self._concerned[names] = tuple(row for row in self.refusals if row.concerns(names))
        return self._concerned[names]

    def known_differences(self, options: Mapping[str, str]) -> tuple[KnownDifference, ...]:
        """In what a target with these canonical options is known to differ when it is compiled again."""
        return tuple(row for row in self.reproducible.exceptions if row.matches(options)) if self.reproducible else ()

    def binary_target(self, options: Mapping[str, str]) -> str | None:
        """What a context binary compiled with these canonical options says that it is for; None where nobody knows."""
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


@dataclass(frozen=True)
class SessionKeys:
    """What is known of ONNX Runtime itself: the session keys that a recipe may set, those that epbuild sets, and what it cannot do."""

    revision: int
    options: Mapping[str, Option]
    reserved: Mapping[str, str]
    longest_key: int = 1024
    longest_value: int = 2048
    cannot: tuple[Limitation, ...] = ()

    @cached_property
    def known(self) -> tuple[str, ...]:
        """Every key that is known, the reserved ones too, sorted."""
        return tuple(sorted({*self.options, *self.reserved}))


def read_entry(document: Mapping[str, Any], user_file: str | None = None) -> Entry:
    """The entry that a catalog document describes; the document must satisfy `catalog.schema.json`."""
    sharing, binary = document.get("sharing", {"possible": False}), document.get("binary", {})
    origin = document["origin"]
    distributions = tuple(document.get("distributions", ()))
    tables = {option: _table(table, origin) for option, table in document.get("names", {}).items()}
    return Entry(
        ep=document["ep"],
        short=document["short"],
        revision=document.get("revision", 1),
        kind=document["kind"],
        module=document.get("module", "onnxruntime" if document["kind"] == "provider" else ""),
        distribution=distributions[0] if distributions else "",
        sources=tuple(document.get("sources", (document["ep"],))),
        devices=tuple(document.get("devices", ())),
        output_depends_on_host=document.get("output_depends_on_host", True),
        booleans=_pair(document.get("booleans", ("0", "1"))),
        sharing=Sharing(
            possible=sharing["possible"],
            binaries=sharing.get("binaries", "each"),
            reason=sharing.get(
                "reason", "" if sharing["possible"] else "the catalog does not say that this EP can share weights"
            ),
            refusals=tuple(SharingRefusal(**row) for row in sharing.get("refused_values", ())),
            what=sharing.get("what", ""),
            weights=sharing.get("weights", "binary"),
        ),
        options=read_options(document.get("options", {}), origin),
        names={option: _spellings(rows) for option, rows in tables.items()},
        target_pattern=binary.get("target_pattern"),
        target_option=binary.get("target_option"),
        description=document.get("description", ""),
        distributions=distributions,
        default=document.get("default", True),
        tables=tables,
        refusals=(*_refusals(document.get("refuse", ()), origin), *_disagreements(document.get("names", {}), tables)),
        cannot=tuple(_limitation(row, origin) for row in document.get("cannot", ())),
        binary_name=binary.get("name"),
        virtual_devices=tuple(document.get("virtual_devices", ())),
        metadata={key: tuple(Metadata(**row) for row in rows) for key, rows in document.get("metadata", {}).items()},
        compatibility_pattern=document.get("compatibility", {}).get("pattern"),
        user_file=user_file,
        reproducible=_reproducibility(document.get("reproducible"), origin),
        node_names=_node_names(document.get("node_names"), origin),
        takes_every_node=document.get("takes_every_node", False),
        numbers=read_numbers(document.get("numbers")),
        graph_optimization_level=document.get("graph_optimization_level", "disable_all"),
        node_log=NodeLogRules(**{"origin": origin, **document["node_log"]}) if "node_log" in document else None,
        start=_start(document.get("start")),
        static_shapes=_static_shapes(document.get("static_shapes"), origin),
    )


def _start(section: Mapping[str, Any] | None) -> Start | None:
    if section is None:
        return None
    return Start(
        name=section["name"],
        packages=tuple(section.get("packages", ())),
        interpreter=section.get("interpreter"),
        option=section.get("option"),
        metadata=section.get("metadata"),
        words=section.get("words", ""),
        example=section["example"],
        options=section.get("options", {}),
        device=section.get("device", {}),
    )


def read_session_keys(document: Mapping[str, Any]) -> SessionKeys:
    """What a document of session keys says."""
    limits = document["limits"]
    options = read_options(document["options"], document["origin"])
    cannot = tuple(_limitation(row, document["origin"]) for row in document.get("cannot", ()))
    return SessionKeys(document["revision"], options, document["reserved"], limits["key"], limits["value"], cannot)


def read_options(table: Mapping[str, Any], origin: str) -> dict[str, Option]:
    """The options of a table; `origin` is that of rows which do not say."""
    return {
        name: Option(
            name=name,
            type=row["type"],
            output=row["output"],
            meaning=row["meaning"],
            origin=row.get("origin", origin),
            values=tuple(row.get("values", ())),
            minimum=row.get("minimum"),
            maximum=row.get("maximum"),
            pattern=row.get("pattern"),
            example=row.get("example"),
            default=row.get("default"),
            since=row.get("since"),
            until=row.get("until"),
            runtime=row.get("runtime", False),
            inline=row.get("inline"),
            files_pattern=row.get("files_pattern"),
            case=row.get("case"),
            compile_only=row.get("compile_only"),
        )
        for name, row in table.items()
    }


def _table(table: Mapping[str, Any], origin: str) -> tuple[Known, ...]:
    words = {"name", "canonical", "spellings", "origin"}
    return tuple(
        Known(
            row["name"],
            row.get("canonical", row["name"]),
            tuple(row.get("spellings", ())),
            {key: value for key, value in row.items() if key not in words},
            row.get("origin", table.get("origin", origin)),
        )
        for row in table["rows"]
    )


def _spellings(rows: Iterable[Known]) -> dict[str, str]:
    return {spelling: row.canonical for row in rows for spelling in (row.name, *row.spellings)}


def _refusals(rows: Iterable[Mapping[str, Any]], origin: str) -> Iterable[Refusal]:
    for row in rows:
        absent, needs = tuple(row.get("absent", ())), tuple(row.get("needs", ()))
        yield Refusal(row["when"], absent, needs, row["reason"], row.get("origin", origin))


def _disagreements(tables: Mapping[str, Any], known: Mapping[str, tuple[Known, ...]]) -> Iterable[Refusal]:
    """A refusal for each known name and each option that must agree with what its table says of it, such as a SoC and its architecture."""
    for option, table in tables.items():
        for other, rule in table.get("implies", {}).items():
            for row in known[option]:
                if rule["fact"] not in row.facts:
                    continue
                right = row.facts[rule["fact"]]
                allowed = "|".join(re.escape(value) for value in (right, *rule.get("neutral", ())))
                reason = f"{row.name} has {other} {right}; {rule['reason']}"
                yield Refusal(
                    {option: f"^{re.escape(row.canonical)}$", other: f"^(?!(?:{allowed})$)"}, (), (), reason, row.origin
                )


def _limitation(row: Mapping[str, Any], origin: str) -> Limitation:
    platforms = tuple(row.get("platforms", ()))
    return Limitation(
        what=row["what"],
        why=row["why"],
        platforms=platforms,
        device=row.get("device"),
        symptom=row.get("symptom"),
        origin=row.get("origin", origin),
        when=row.get("when", {}),
        during=row.get("during"),
        of=row.get("limit_of", "machine"),
        hint=row.get("hint"),
        source_has=row.get("source_has"),
        stops=row.get("stops", False),
    )


def _reproducibility(section: Mapping[str, Any] | None, origin: str) -> Reproducibility | None:
    if section is None:
        return None
    known = section.get("origin", origin)
    exceptions = (
        KnownDifference(row["why"], row.get("when", {}), row.get("by"), row.get("origin", known))
        for row in section.get("except", ())
    )
    return Reproducibility(section["what"], known, tuple(exceptions))


def _node_names(section: Mapping[str, Any] | None, origin: str) -> NodeNames | None:
    return None if section is None else NodeNames(section["found_by"], section["why"], section.get("origin", origin))


def _static_shapes(section: Mapping[str, Any] | None, origin: str) -> StaticShapes | None:
    return None if section is None else StaticShapes(section["why"], section.get("origin", origin))


def _pair(words: Any) -> tuple[str, str]:
    return (words[0], words[1])


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
