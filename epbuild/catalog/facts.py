"""Sections and rows of a catalog file, a class for each."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace


def do_options_match(patterns: Mapping[str, str], options: Mapping[str, str]) -> bool:
    """Return whether canonical `options` have all names of `patterns`, with values that match these regular expressions."""
    return all(name in options and re.search(pattern, options[name]) for name, pattern in patterns.items())


class StaticShapes(Struct, frozen=True):
    """Requirement of an EP that only takes nodes whose sizes are all known at compile time."""

    why: str
    """Consequence of an open dimension, as a clause."""
    origin: str


class Driver(Struct, frozen=True):
    """Driver or device of the compiling machine. `epbuild.core.host.read_driver_version` reads its version."""

    name: str
    linux: tuple[str, ...] = ()
    """Globs of files. The version is in the content of a file in /proc or /sys, and in the name of any other file."""
    pattern: str = "(?s)(.+)"
    """Regular expression whose first group is the version."""
    windows: str = ""
    """GUID of the device class."""
    provider: str = ".*"
    """Regular expression for the manufacturer."""

    @property
    def plain(self) -> tuple[tuple[str, ...], str, str, str]:
        """Arguments of `read_driver_version`."""
        return self.linux, self.pattern, self.windows, self.provider


class HostDependence(Struct, frozen=True):
    """Properties of the compiling machine that may change an EP's output. The defaults hold for an EP that was never examined."""

    cpu: Literal["model", "instructions", "none"] = "model"
    """Relevant property of the CPU."""
    cpu_count: bool = False
    drivers: tuple[Driver, ...] = ()


class SharingRefusal(Struct, frozen=True):
    """Option value, as a regular expression, that rules out weight sharing, and the reason."""

    option: str
    pattern: str
    reason: str

    def matches(self, value: str) -> bool:
        """Return whether a canonical value is refused."""
        return re.search(self.pattern, value) is not None


class Sharing(Struct, frozen=True):
    """Support of an EP for sharing weights between the members of a group."""

    possible: bool = False
    binaries: Literal["one", "each"] = "each"
    """One context binary for a sharing group, or one for each member."""
    reason: str = ""
    """Reason why sharing is impossible."""
    refused_values: tuple[SharingRefusal, ...] = ()
    what: str = ""
    """Description of what the members share, as a sentence."""
    weights: Literal["binary", "source"] = "binary"
    """Place of shared weights: the context binary, or the source model's external data, which must be emitted too."""


class Binary(Struct, frozen=True):
    """Context binaries of an EP."""

    name: str | None = None
    """File name. `{stem}` is the output model's name without its last extension."""
    target_pattern: str | None = None
    """Regular expression whose first group is the target's name inside a context binary."""
    target_option: str | None = None
    """Option that names the requested target."""


class Compatibility(Struct, frozen=True):
    """Form of an EP's `ep_compatibility_info`."""

    pattern: str | None = None
    """Regular expression with a named group for each field."""
    versions: tuple[str, ...] = ()
    """Fields that describe the toolchain and not the target."""


class Refusal(Struct, frozen=True):
    """Combination of options that an EP rejects, or accepts and misreads, and the reason."""

    when: Mapping[str, str]
    """Options, each with a regular expression for its canonical value."""
    reason: str
    origin: str
    absent: tuple[str, ...] = ()
    """Options that must all be missing."""
    needs: tuple[str, ...] = ()
    """Options of which at least one must be missing."""

    def concerns(self, names: frozenset[str]) -> bool:
        """Return whether options of these names can be this combination, for some values."""
        is_incomplete = not self.needs or not names.issuperset(self.needs)
        return names.issuperset(self.when) and names.isdisjoint(self.absent) and is_incomplete


class KnownDifference(Struct, frozen=True):
    """Known difference between two compiles of the same target, and the reason."""

    why: str
    origin: str
    when: Mapping[str, str] = field(default_factory=dict)
    """Options, each with a regular expression for its canonical value. Empty means every target."""
    by: Literal["timestamp"] | None = None
    """The only part that differs. None means that any part may differ."""


class Reproducibility(Struct, frozen=True):
    """Known facts about compiling the same inputs again."""

    what: str
    """Conditions for equal bytes, as a sentence."""
    origin: str
    exceptions: tuple[KnownDifference, ...] = field(default=(), name="except")


class NodeNames(Struct, frozen=True):
    """Lookup of contexts by an EP that ignores `ep.context_node_name_prefix`. It decides which nodes can be renamed."""

    found_by: Literal["name", "partition_name"]
    """With `partition_name`, any node can be renamed. With `name`, only a node that is alone in its context."""
    why: str
    """Consequence for other nodes, as a clause."""
    origin: str


class Start(Struct, frozen=True, kw_only=True):
    """Content of a first recipe: an environment that is known to work, and the value that distinguishes targets."""

    name: str
    """Name of the EP for `epbuild init`, and of the default toolchain."""
    packages: tuple[str, ...] = ()
    interpreter: str | None = None
    """Interpreter of an environment that epbuild cannot create."""
    option: str | None = None
    """Option whose value distinguishes targets."""
    metadata: str | None = None
    """Device metadata key whose value distinguishes targets. Without it and `option`, there is one target."""
    key: str | None = None
    """Key of a target in a recipe that is short for `device` and `options` with this value of `option`, such as `soc`."""
    words: str = ""
    """Description of that value."""
    example: str
    options: Mapping[str, str] = field(default_factory=dict)
    device: Mapping[str, str | bool] = field(default_factory=dict)

    @property
    def environment(self) -> str:
        """Key and value of a toolchain in YAML."""
        return f"packages: [{', '.join(self.packages)}]" if self.packages else f"interpreter: {self.interpreter}"


class KnownName(Struct, frozen=True):
    """Known value of an option of type name, such as a SoC."""

    name: str
    canonical: str
    """Value for the EP: the name, or a number if the EP does not know the name."""
    spellings: tuple[str, ...]
    """Other accepted spellings."""
    products: tuple[str, ...]
    """Product names, which short forms of a recipe accept."""
    facts: Mapping[str, str]
    """All other columns of the row."""
    origin: str


class ImpliedValue(Struct, frozen=True):
    """Rule that another option must agree with a fact of a name."""

    fact: str
    reason: str
    neutral: tuple[str, ...] = ()
    """Values that are accepted for every name."""


class NameTable(Struct, frozen=True, dict=True):
    """Known values of an option of type name."""

    rows: tuple[KnownName, ...]
    implies: Mapping[str, ImpliedValue] = field(default_factory=dict)
    """Rules by the option that must agree."""

    @cached_property
    def canonical(self) -> Mapping[str, str]:
        """Canonical value by spelling."""
        return {spelling: row.canonical for row in self.rows for spelling in (row.name, *row.spellings)}

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Name by spelling and by product, in lower case."""
        spelled = [(spelling, row.name) for row in self.rows for spelling in (row.name, *row.spellings, *row.products)]
        return {spelling.casefold(): name for spelling, name in reversed(spelled)}


class Metadata(Struct, frozen=True):
    """Value of a device metadata key, such as an NPU's platform number."""

    value: str
    meaning: str


class Limitation(Struct, frozen=True):
    """Thing that an EP cannot do, and the conditions and the reason."""

    what: str
    why: str
    origin: str
    platforms: tuple[str, ...] = ()
    """Values of `sys.platform`. Empty means everywhere."""
    device: str | None = None
    """Type of device. None means any."""
    symptom: str | None = None
    """Regular expression that finds this limitation in the EP's log."""
    when: Mapping[str, str] = field(default_factory=dict)
    """Options, each with a regular expression for its canonical value. Empty means any options."""
    during: Literal["compile", "load"] | None = None
    """Act that fails because of it. None means both acts."""
    limit_of: Literal["machine", "target", "model"] = "machine"
    """Scope of the limitation: another machine, target or model may not have it."""
    hint: str | None = None
    """Advice, as sentences."""
    sized_hint: str | None = None
    """Advice if all input sizes of the model are known. None means `hint`."""
    source_has: Literal["overridable initializers"] | None = None
    """Property of source models that are refused before they are compiled."""
    driver: str | None = None
    """Name of a driver in `host`. The limitation holds on machines without it."""
    stops: bool = False
    """True if nothing can be compiled where the limitation holds."""

    def holds(self, platform: str, device: str | None, options: Mapping[str, str]) -> bool:
        """Return whether the limitation holds on a `sys.platform`, for a type of device (None: any) and canonical options."""
        is_here = not self.platforms or platform in self.platforms
        return is_here and self.device in (None, device) and do_options_match(self.when, options)

    def shows(self, reported: str, act: Literal["compile", "load"], device: str | None, options: Mapping[str, str]) -> bool:
        """Return whether the limitation explains the failure of an act on this machine, given the text that the EP reported."""
        return (
            self.symptom is not None
            and self.during in (None, act)
            and self.holds(sys.platform, self.device if device is None else device, options)
            and re.search(self.symptom, reported) is not None
        )


class PatternNode(Struct, frozen=True):
    """Node of a pattern. Equal texts are equal values; a text that begins with `$` is a constant."""

    op: str
    inputs: tuple[str, ...]
    output: str


class Rewrite(Struct, frozen=True):
    """Pattern of nodes that an EP fails on, with a replacement of its last node that computes the same."""

    name: str
    summary: str
    """Description of the pattern, as a noun phrase."""
    nodes: tuple[PatternNode, ...]
    replacement: PatternNode
    origin: str


class ContextChanges(Struct, frozen=True):
    """Changes around EPContext nodes that an EP tolerates. The defaults apply if this was never measured."""

    contexts: int | None = None
    """Maximum number of compiled contexts in one model. None means any number."""
    value_names: str | None = None
    """Attribute with the names of the context's own inputs and outputs, each as `value=name;`. Without it, values keep their names."""
    lone_node_name: bool = False
    """True if a context's EPContext node may be renamed when it is the only one. With several, the EP finds each by its name."""


class NodeLogRules(Struct, frozen=True):
    """Regular expressions for the most verbose log of an EP, in which it reports whether it takes each node."""

    refused: str
    """First line of an entry about refused nodes, which may have several lines."""
    node: str
    """Node in an entry, with groups `operator` and `node`."""
    reason: str
    """Reason in an entry, with a group `reason`."""
    more: str
    """Any other line of an entry."""
    origin: str


class Thresholds(Struct, frozen=True):
    """Threshold of each metric. None means that the metric is only measured."""

    cosine: float | None = None
    """Minimum cosine between an output and its expected value."""
    snr_db: float | None = None
    """Minimum signal-to-noise ratio in dB."""
    top1: float | None = None
    """Minimum share, from 0 to 1, of rows whose largest number is at the expected index."""
    max_abs: float | None = None
    """Maximum difference of one number."""
    max_rel: float | None = None
    """Maximum difference of one number, relative to the output's largest expected magnitude."""

    def over(self, other: Thresholds) -> Thresholds:
        """Return these thresholds, with each None replaced by the threshold of `other`."""
        return replace(other, **{name: value for name in METRICS if (value := getattr(self, name)) is not None})


METRICS = Thresholds.__struct_fields__
"""Names of all metrics, in the order of tables."""


class Numbers(Struct, frozen=True):
    """Known facts about the accuracy of an EP. The defaults apply to an EP that was never measured."""

    floats: Thresholds = Thresholds(cosine=0.999, snr_db=20, max_rel=0.1)
    """Thresholds of models that compute with floats."""
    quantised: Thresholds = Thresholds(cosine=0.99, snr_db=15)
    """Thresholds of models that compute with quantized values."""
    smallest: float = 0.0
    """Magnitude below which numbers lose precision. Differences of outputs are ignored if all their values are smaller."""
    largest: float | None = None
    """Largest number that the EP's compute precision can represent. None means that the EP computes in the model's precision."""
    overflow: str = ""
    """Advice, as a sentence, for values that overflow `largest`."""
    far: str = ""
    """Advice, as a sentence, for outputs that differ too much from the outputs of the CPU EP."""
    far_quantised: str = ""
    """Like `far`, for models that compute with quantized values."""
