"""Facts about an EP: a class for each kind."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field


class StaticShapes(Struct, frozen=True):
    """That an EP takes a node only where every size is known when it compiles; `why` is a clause."""

    why: str
    origin: str


class Driver(Struct, frozen=True):
    """A driver, or a device, of the machine that compiles, and where its version is read; `epbuild.core.host.driver_version` reads it."""

    name: str
    linux: tuple[str, ...] = ()
    """Globs of files: of those in /proc and /sys the content counts, of others the name."""
    pattern: str = "(?s)(.+)"
    """Finds the version, its first group, in that."""
    windows: str = ""
    """The device class of its drivers, a GUID."""
    provider: str = ".*"
    """A regular expression for who made them."""

    @property
    def plain(self) -> tuple[tuple[str, ...], str, str, str]:
        """As `driver_version` takes it."""
        return self.linux, self.pattern, self.windows, self.provider


class HostDependence(Struct, frozen=True):
    """What of the machine that compiles may decide what an EP writes."""

    cpu: Literal["model", "instructions", "none"] = "model"
    """Whether it is which CPU that is, the instructions that it has, or neither."""
    cpu_count: bool = False
    drivers: tuple[Driver, ...] = ()


class SharingRefusal(Struct, frozen=True):
    """An option value that rules weight sharing out, as a regular expression, and why."""

    option: str
    pattern: str
    reason: str

    def matches(self, value: str) -> bool:
        """Whether an option's canonical value is one of the refused ones."""
        return re.search(self.pattern, value) is not None


class Sharing(Struct, frozen=True):
    """Whether and how an EP shares weights between the members of a group."""

    possible: bool = False
    binaries: Literal["one", "each"] = "each"
    reason: str = ""
    refusals: tuple[SharingRefusal, ...] = ()
    what: str = ""
    """What the members share and how, in a sentence."""
    weights: Literal["binary", "source"] = "binary"
    """Where shared weights are found: in the context binary, or in the source model's external data, which must be emitted too."""


class Refusal(Struct, frozen=True):
    """A combination of options that an EP rejects, or accepts and misreads, and why."""

    when: Mapping[str, str]
    """Option and the regular expression that its canonical value must match."""
    reason: str
    origin: str
    absent: tuple[str, ...] = ()
    """Options of which none may be there."""
    needs: tuple[str, ...] = ()
    """Options of which at least one must be missing."""

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


class KnownDifference(Struct, frozen=True):
    """What is known to differ when a target is compiled again, and why."""

    why: str
    origin: str
    when: Mapping[str, str] = field(default_factory=dict)
    """Option and the regular expression that its canonical value must match; none: every target."""
    by: Literal["timestamp"] | None = None
    """What alone differs; None: anything may."""

    def matches(self, options: Mapping[str, str]) -> bool:
        """Whether a target with these canonical options is one of those that differ."""
        return all(name in options and re.search(pattern, options[name]) for name, pattern in self.when.items())


class Reproducibility(Struct, frozen=True):
    """What is known of compiling the same again with the same."""

    what: str
    """What gives the same bytes, or does not, in a sentence."""
    origin: str
    exceptions: tuple[KnownDifference, ...]


class NodeNames(Struct, frozen=True):
    """How an EP that ignores `ep.context_node_name_prefix` finds its part of a context, and so which of its nodes can be renamed."""

    found_by: Literal["name", "partition_name"]
    """By `partition_name`: any node can be renamed. By its name: only one that is alone in its context, which is found without."""
    why: str
    """What becomes of other nodes, as a clause."""
    origin: str


class Start(Struct, frozen=True, kw_only=True):
    """What a first recipe for an EP holds: an environment that is known to work, and what distinguishes its targets."""

    name: str
    """What `epbuild init` calls it."""
    packages: tuple[str, ...] = ()
    interpreter: str | None = None
    """Of an environment that epbuild cannot make."""
    option: str | None = None
    metadata: str | None = None
    """The option, or the device's metadata, whose value a target is asked for; None of both: there is one target."""
    words: str = ""
    """What that value is."""
    example: str
    options: Mapping[str, str] = field(default_factory=dict)
    device: Mapping[str, str | bool] = field(default_factory=dict)

    @property
    def environment(self) -> str:
        """The key of a toolchain, and its value, for that environment."""
        return f"packages: [{', '.join(self.packages)}]" if self.packages else f"interpreter: {self.interpreter}"


class Known(Struct, frozen=True):
    """One value of an option that has a table: its name, the other spellings that stand for it, and what is known of it."""

    name: str
    canonical: str
    """What the EP is given for it: its name, or a number where the EP does not know the name."""
    spellings: tuple[str, ...]
    facts: Mapping[str, str]
    origin: str


class Metadata(Struct, frozen=True):
    """One value of a device's metadata key, such as an NPU's platform number."""

    value: str
    meaning: str


class Limitation(Struct, frozen=True):
    """One thing that an EP cannot do, where, and why."""

    what: str
    why: str
    origin: str
    platforms: tuple[str, ...] = ()
    """`linux`, `win32`, `darwin`; none: everywhere."""
    device: str | None = None
    symptom: str | None = None
    """A regular expression that finds this limitation in the EP's log when it fails."""
    when: Mapping[str, str] = field(default_factory=dict)
    """Option and the regular expression that its canonical value must match; none: whatever the options."""
    during: Literal["compile", "load"] | None = None
    """Where it shows; None: in both."""
    of: Literal["machine", "target", "model"] = "machine"
    """What it is that cannot: this machine, so that another one may; what is compiled for; or the model as it is, or as it is asked for."""
    hint: str | None = None
    """What to try, as sentences."""
    sized_hint: str | None = None
    """What to try instead if every input of the model has its sizes; None: the same."""
    source_has: Literal["overridable initializers"] | None = None
    """What a source model has that this is about, so that it is refused before it is compiled."""
    driver: str | None = None
    """The driver, by its name in `host`, without which it holds on a machine."""
    stops: bool = False
    """Whether nothing at all can be compiled where this holds."""

    def holds(self, platform: str, device: str | None, options: Mapping[str, str]) -> bool:
        """Whether it holds on a `platform` (as `sys.platform`), for a device of a type (None: any) and these canonical options."""
        here = not self.platforms or platform in self.platforms
        concerned = self.device in (None, device)
        return here and concerned and all(name in options and re.search(rule, options[name]) for name, rule in self.when.items())

    def shows(self, reported: str, act: Literal["compile", "load"], device: str | None, options: Mapping[str, str]) -> bool:
        """Whether this is why an act failed here, by what was `reported`, the type of device and the canonical options."""
        return (
            self.symptom is not None
            and self.during in (None, act)
            and self.holds(sys.platform, self.device if device is None else device, options)
            and re.search(self.symptom, reported) is not None
        )


class ContextChanges(Struct, frozen=True):
    """What may be changed around an EP's EPContext nodes so that it still loads and computes right; the default: what nobody measured."""

    contexts: int | None = None
    """How many compiled contexts one model may have; None: any number."""
    value_names: str | None = None
    """The attribute that has the names of the context's own inputs and outputs as `value=name;` each; None: values keep their names."""
    lone_node_name: bool = False
    """Whether a node may be renamed that is the only one of its context. Others are found in the context by their names."""


class NodeLogRules(Struct, frozen=True):
    """How an EP logs of each node whether it takes it, as regular expressions for the lines of its most verbose log."""

    refused: str
    """Finds an entry about nodes that it does not take, which goes on for some lines."""
    node: str
    """Finds a node there: groups `operator` and `node`, its name."""
    reason: str
    """Finds why they are not taken: a group `reason`."""
    more: str
    """Finds any other line that belongs to the entry before it."""
    origin: str
