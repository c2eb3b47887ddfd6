"""Classes for the sections and rows of a catalog file."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.core.errors import suggest_nearest


def has_matching_options(patterns: Mapping[str, str], options: Mapping[str, str]) -> bool:
    """Return whether canonical `options` match `patterns`.

    Each pattern is a regular expression for the value of an option. An option that is missing does not match.
    """
    return all(name in options and re.search(pattern, options[name]) for name, pattern in patterns.items())


class StaticShapes(Struct, frozen=True):
    """Requirement by an EP that all tensor sizes of a node be known at compile time."""

    why: str
    """Consequence of a symbolic dimension, as a clause."""
    origin: str


class DynamicQuantization(Struct, frozen=True):
    """Operators of dynamic quantization that an EP does not support, or only in part. The preparation `dequantize` replaces them."""

    operators: tuple[str, ...]
    """Names, with the domain and a colon unless the operator is ONNX's own."""
    why: str
    """Limits of the EP's support for these operators, as a clause."""
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
    """Properties of the compiling machine that may change an EP's output. The defaults apply to an EP that was never examined."""

    cpu: Literal["model", "instructions", "none"] = "model"
    """Property of the CPU that may change the output."""
    cpu_count: bool = False
    drivers: tuple[Driver, ...] = ()


class SharingRefusal(Struct, frozen=True):
    """Option values that exclude weight sharing, as a regular expression, and the reason."""

    option: str
    pattern: str
    reason: str

    def matches(self, value: str) -> bool:
        """Return whether a canonical value of the option excludes weight sharing."""
        return re.search(self.pattern, value) is not None


class Sharing(Struct, frozen=True):
    """Support of an EP for sharing weights between the members of a group."""

    possible: bool = False
    binaries: Literal["one", "each"] = "each"
    """`one` if a sharing group has one context binary, `each` if every member has its own."""
    reason: str = ""
    """Reason why sharing is impossible."""
    refused_values: tuple[SharingRefusal, ...] = ()
    what: str = ""
    """Description of what the members share, as a sentence."""
    weights: Literal["binary", "source"] = "binary"
    """Place of shared weights: the context binary, or the source model's external data, which must be emitted too."""


class Describer(Struct, frozen=True):
    """Library in an EP's package that describes context binaries through the QNN System API."""

    function: str
    """Function of the library that returns its interfaces."""
    linux: str | None = None
    win32: str | None = None

    def find_library(self, platform: str) -> str | None:
        """Return the file name of the library for a `sys.platform`, or None."""
        return {"linux": self.linux, "win32": self.win32}.get(platform)


class WeightsRule(Struct, frozen=True):
    """Rule for context binaries whose weights are in another file."""

    beside: str
    """Suffix of the names of such context binaries."""
    name: str
    """Name of the weights file. `{stem}` stands for the name of the context binary without its suffix."""
    extent: str
    """Regular expression for a context binary. Its groups `offset` and `size` are the place of one weight in the weights file.

    Its optional group `name` is the name of the weight, with the escapes of XML.
    """


class PartsRule(Struct, frozen=True):
    """Rule for context binaries that list the sizes of their parts in their first bytes."""

    begins: str
    """Regular expression for the first bytes of such a context binary."""
    part: str
    """Regular expression for an entry of the list. Its group `size` is the size of the part, a little-endian integer.

    Its group `graph` is the name of the graph that the part belongs to. It is absent if the part has weights of several graphs.
    """


class Binary(Struct, frozen=True):
    """Facts about the context binaries of an EP."""

    name: str | None = None
    """Name of the file. `{stem}` stands for the output model's file name without its last extension."""
    target_pattern: str | None = None
    """Regular expression for a context binary. Its first group is the name of the target."""
    target_option: str | None = None
    """Option that selects the target to compile for."""
    describer: Describer | None = None
    """Library that describes binaries. None if the EP has none."""
    sdk_attribute: str | None = None
    """Attribute of the EP's Python module with the version of its SDK, such as `info.sdk`."""
    weights: WeightsRule | None = None
    """Weights files that belong to context binaries. None if context binaries contain their weights."""
    parts: PartsRule | None = None
    """Context binaries that list the sizes of their parts. None if no such format is known."""
    read_callback: bool | None = None
    """True if the EP can read context binaries through a callback of the application. None if this is unknown."""


class Compatibility(Struct, frozen=True):
    """Format of the `ep_compatibility_info` that an EP writes."""

    pattern: str | None = None
    """Regular expression with a named group for each field."""
    versions: tuple[str, ...] = ()
    """Names of the fields that describe the toolchain instead of the target."""


class Refusal(Struct, frozen=True):
    """Combination of options that an EP rejects or misinterprets, and the reason."""

    when: Mapping[str, str]
    """Regular expressions for canonical values, by option."""
    reason: str
    origin: str
    absent: tuple[str, ...] = ()
    """Options that must all be missing for the refusal to apply."""
    needs: tuple[str, ...] = ()
    """Options of which at least one must be missing for the refusal to apply."""

    def concerns(self, names: frozenset[str]) -> bool:
        """Return whether options with these names could form this combination, depending on their values."""
        is_incomplete = not self.needs or not names.issuperset(self.needs)
        return names.issuperset(self.when) and names.isdisjoint(self.absent) and is_incomplete


class KnownDifference(Struct, frozen=True):
    """Known difference between two compiles of the same target, and the reason."""

    why: str
    origin: str
    when: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions for canonical values, by option. Empty means every target."""
    by: Literal["timestamp"] | None = None
    """The only part that differs. None means that any part may differ."""


class Reproducibility(Struct, frozen=True):
    """Known facts about whether compiling the same inputs twice produces the same bytes."""

    what: str
    """Conditions under which the bytes are equal, as a sentence."""
    origin: str
    exceptions: tuple[KnownDifference, ...] = field(default=(), name="except")


class NodeNames(Struct, frozen=True):
    """Way in which an EP that ignores `ep.context_node_name_prefix` finds the context of a node.

    It determines which nodes can be renamed.
    """

    found_by: Literal["name", "partition_name"]
    """Attribute that identifies a context. With `partition_name`, all nodes can be renamed, but not their `partition_name`.

    With `name`, a node and its `partition_name` can be renamed only if its context contains no other node.
    """
    why: str
    """Reason why the other nodes cannot be renamed, as a clause."""
    origin: str


class Start(Struct, frozen=True, kw_only=True):
    """Values for a new recipe: an environment that is known to work, and the setting that distinguishes targets."""

    name: str
    """Name of the EP for `epbuild init`, and of the default toolchain."""
    packages: tuple[str, ...] = ()
    interpreter: str | None = None
    """Interpreter of an environment that epbuild cannot create."""
    option: str | None = None
    """Option whose value distinguishes targets."""
    metadata: str | None = None
    """Device metadata key whose value distinguishes targets. If neither this key nor `option` is set, there is only one target."""
    key: str | None = None
    """Short key of a target in a recipe, such as `soc`. The key stands for `device`, `options` and a value of `option`."""
    words: str = ""
    """Description of the value that distinguishes targets."""
    example: str
    options: Mapping[str, str] = field(default_factory=dict)
    device: Mapping[str, str | bool] = field(default_factory=dict)

    @property
    def environment(self) -> str:
        """The toolchain's `packages` or `interpreter` as YAML."""
        return f"packages: [{', '.join(self.packages)}]" if self.packages else f"interpreter: {self.interpreter}"


class KnownName(Struct, frozen=True):
    """Known value of an option of type `name`, such as a SoC."""

    name: str
    """Name to write in a recipe."""
    canonical: str
    """Value to pass to the EP: the name, or a number if the EP does not know the name."""
    spellings: tuple[str, ...]
    """Other accepted spellings."""
    products: tuple[str, ...]
    """Product names that recipes may use instead."""
    facts: Mapping[str, str]
    """Other columns of the row, such as the architecture, by name."""
    origin: str
    """Source of the row."""


class ImpliedValue(Struct, frozen=True):
    """Rule that the value of another option must equal the column `fact` in the row of the known name."""

    fact: str
    reason: str
    neutral: tuple[str, ...] = ()
    """Values that are accepted for every name."""


class NameTable(Struct, frozen=True, dict=True):
    """Known values of an option of type `name`."""

    rows: tuple[KnownName, ...]
    implies: Mapping[str, ImpliedValue] = field(default_factory=dict)
    """Rules, by the other option whose value must agree."""

    @cached_property
    def canonical(self) -> Mapping[str, str]:
        """Canonical value by spelling."""
        return {spelling: row.canonical for row in self.rows for spelling in (row.name, *row.spellings)}

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Names by spelling and by product name, both in lower case."""
        spelled = [(spelling, row.name) for row in self.rows for spelling in (row.name, *row.spellings, *row.products)]
        return {spelling.casefold(): name for spelling, name in reversed(spelled)}

    def find(self, text: str) -> str | None:
        """Return the hardware name for a name or product name, or None if it is unknown. Ignore case and repeated spaces."""
        return self.names.get(" ".join(text.split()).casefold())

    def suggest_product(self, text: str) -> str | None:
        """Return a hint with the product name that contains `text` or is closest to it, or None."""
        products = [product for row in self.rows for product in row.products]
        part = text.strip().casefold()
        containing = [product for product in products if part and part in product.casefold()]
        return f"Did you mean '{min(containing, key=len)}'?" if containing else suggest_nearest(text, products)


class Metadata(Struct, frozen=True):
    """Value of a device metadata key, such as an NPU's platform number."""

    value: str
    meaning: str


class Limitation(Struct, frozen=True):
    """Something that an EP cannot do, with its conditions and its reason."""

    what: str
    why: str
    origin: str
    platforms: tuple[str, ...] = ()
    """Values of `sys.platform`. Empty means everywhere."""
    device: str | None = None
    """Type of device that has the limitation. None means any type."""
    symptom: str | None = None
    """Regular expression that matches the EP's log if the limitation applies."""
    when: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions for canonical values, by option. Empty means any options."""
    during: Literal["compile", "load"] | None = None
    """Operation that fails because of the limitation. None means both operations."""
    limit_of: Literal["machine", "target", "model"] = "machine"
    """Scope of the limitation: a different machine, target or model may work."""
    hint: str | None = None
    """Advice, as sentences."""
    sized_hint: str | None = None
    """Advice for a model whose input sizes are all known. None means that `hint` applies."""
    source_has: Literal["overridable initializers"] | None = None
    """Property of source models. Models that have it are rejected before they are compiled."""
    driver: str | None = None
    """Name of a driver in `host`. The limitation applies to machines without this driver."""
    stops: bool = False
    """True if nothing can be compiled where the limitation applies."""

    def holds(self, platform: str, device: str | None, options: Mapping[str, str]) -> bool:
        """Return whether the limitation applies to a `sys.platform`, a type of device and canonical options.

        If the type of device is None, only limitations that apply to any type match.
        """
        is_here = not self.platforms or platform in self.platforms
        return is_here and self.device in (None, device) and has_matching_options(self.when, options)

    def shows(self, reported: str, act: Literal["compile", "load"], device: str | None, options: Mapping[str, str]) -> bool:
        """Return whether the limitation explains the failure of a compile or a load on this machine.

        `reported` is the text that the EP reported.
        """
        return (
            self.symptom is not None
            and self.during in (None, act)
            and self.holds(sys.platform, self.device if device is None else device, options)
            and re.search(self.symptom, reported) is not None
        )


class PatternNode(Struct, frozen=True):
    """Node of a pattern. `inputs` and `output` are names of values. A name that begins with `$` stands for a constant."""

    op: str
    inputs: tuple[str, ...]
    output: str


class Rewrite(Struct, frozen=True):
    """Pattern of nodes on which an EP fails, and an equivalent replacement for the last node."""

    name: str
    summary: str
    """Description of the pattern, as a noun phrase."""
    nodes: tuple[PatternNode, ...]
    replacement: PatternNode
    origin: str


class ContextChanges(Struct, frozen=True):
    """Changes to EPContext nodes that an EP tolerates. The defaults apply if tolerance was never measured."""

    contexts: int | None = None
    """Maximum number of compiled contexts in one model. None means any number."""
    value_names: str | None = None
    """Attribute that maps values to the context's own input and output names, as `value=name;`.

    None means that values cannot be renamed.
    """
    lone_node_name: bool = False
    """True if an EPContext node may be renamed when its context has no other node.

    If a context has several nodes, the EP identifies them by name.
    """


class NodeLogRules(Struct, frozen=True):
    """Regular expressions for an EP's most verbose log, which reports the nodes that the EP refuses."""

    refused: str
    """First line of an entry about refused nodes. An entry may have several lines."""
    node: str
    """Node in an entry, with groups `operator` and `node`."""
    reason: str
    """Reason in an entry, with a group `reason`."""
    more: str
    """Any other line of an entry."""
    origin: str


class Thresholds(Struct, frozen=True):
    """Thresholds of metrics. None means that the metric is measured but not checked."""

    cosine: float | None = None
    """Minimum cosine similarity between an output and its expected value."""
    snr_db: float | None = None
    """Minimum signal-to-noise ratio in dB."""
    top1: float | None = None
    """Minimum fraction, from 0 to 1, of rows whose largest number is at the expected index."""
    max_abs: float | None = None
    """Maximum absolute difference of a number from its expected value."""
    max_rel: float | None = None
    """Maximum difference of a number from its expected value, relative to the output's largest expected magnitude."""

    def over(self, other: Thresholds) -> Thresholds:
        """Return these thresholds, but replace each threshold that is None with the one in `other`."""
        return replace(other, **{name: value for name in METRICS if (value := getattr(self, name)) is not None})


METRICS = Thresholds.__struct_fields__
"""Names of all metrics, in the order in which tables list them."""


class Numbers(Struct, frozen=True):
    """Known facts about the accuracy of an EP. The defaults apply to an EP that was never measured."""

    floats: Thresholds = Thresholds(cosine=0.999, snr_db=20, max_rel=0.1)
    """Thresholds of models that compute with floats."""
    quantized: Thresholds = Thresholds(cosine=0.99, snr_db=15)
    """Thresholds of models that compute with quantized values."""
    smallest: float = 0.0
    """Magnitude below which numbers lose precision. Differences in an output are ignored if all of its values are smaller."""
    largest: float | None = None
    """Largest number that the EP's compute precision can represent. None means that the EP computes in the model's precision."""
    overflow: str = ""
    """Advice, as a sentence, for values that overflow `largest`."""
    far: str = ""
    """Advice, as a sentence, for outputs that differ too much from the outputs of the CPU EP."""
    far_quantized: str = ""
    """Like `far`, for models that compute with quantized values."""
