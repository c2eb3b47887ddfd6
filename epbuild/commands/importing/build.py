"""Build of another tool, converted to settings of a recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from epbuild.catalog.catalog import find_session_key
from epbuild.catalog.normalize import BadValue, UnknownName, find_option, find_refusals, normalize
from epbuild.commands.init.choices import StarterKind, list_starter_kinds
from epbuild.core.errors import Argument, Location, PlanError, Position, Problem

_BACKEND_LIBRARY = re.compile(r"(?:^|[\\/])(?:lib)?Qnn(Htp|Cpu|Gpu|Saver|Ir)(?:\.dll|\.so|\.dylib)?$", re.IGNORECASE)
_IMPLIED = {
    "ep.context_enable": "1",
    "ep.context_embed_mode": "0",
    "ep.share_ep_contexts": "1",
    "ep.stop_share_ep_contexts": "1",
}
"""Session options that epbuild itself sets, with their values."""
_PREFIX = "ep.context_node_name_prefix"


class SkippedSetting(NamedTuple):
    """Setting that is not imported, with the reason and a hint."""

    what: str
    why: str
    hint: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}. {self.hint}".rstrip()


def make_import_error(message: str, where: Location | str | None, hint: str | None = None) -> PlanError:
    """Return the error for a source that cannot be imported."""
    return PlanError(Problem("EPB292", message, Argument(where) if isinstance(where, str) else where, hint))


def parse_json_text(text: str, path: Path) -> Any:
    """Return the value of the JSON in a file. Raises PlanError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise make_import_error(f"invalid JSON: {error.msg}", Position(str(path), error.lineno, error.colno)) from error
    except (RecursionError, ValueError) as error:
        raise make_import_error(f"invalid JSON: {type(error).__name__}", path) from error


class DecoderPasses(NamedTuple):
    """Passes that split a decoder, and that fix the sizes of its tokens."""

    split: str = ""
    """Name of the pass that splits the model. Empty if there is none."""
    parts: int = 0
    """Number of parts of about equally many layers. 0 if it is unknown."""
    has_ends: bool = False
    """True if embeddings and head are parts of their own, in addition to `parts`."""
    assignments: Mapping[str, int] = {}
    """Part of each module, by name. Empty if the model or `parts` determines the parts."""
    static: str = ""
    """Name of the pass that fixes sizes. Empty if there is none."""
    batch: int = 1
    tokens: Mapping[str, int] = {}
    """Number of tokens in one run, by phase."""


@dataclass
class ImportedBuild:
    """Build of another tool, as the settings of one session group."""

    tool: str
    kind: StarterKind
    models: Sequence[str] = ()
    provider_options: dict[str, str] = field(default_factory=dict)
    session_options: dict[str, str] = field(default_factory=dict)
    compile: dict[str, str] = field(default_factory=dict)
    """Settings of a group's `compile`."""
    device: Literal["npu", "gpu", "cpu"] | None = None
    share_weights: bool = False
    fallback_nodes: Literal["0", "any"] = "any"
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Sizes of inputs by name."""
    decoder: DecoderPasses | None = None
    left: list[SkippedSetting] = field(default_factory=list)

    def skip_setting(self, what: str, why: str, hint: str = "") -> None:
        """Record a setting that is not imported."""
        self.left.append(SkippedSetting(what, why, hint))

    def add_options(self, options: Mapping[str, object], shown: str) -> None:
        """Import the provider options that the catalog knows. `shown` is the tool's name for provider options."""
        for name, value in options.items():
            what = f"{shown} {name}={_format_option(value)}"
            backend = _BACKEND_LIBRARY.search(_format_option(value)) if name == "backend_path" else None
            if backend is not None:
                self.provider_options["backend_type"] = backend[1].lower()
                if re.search(r"[\\/]", _format_option(value)):
                    self.skip_setting(
                        what, "epbuild uses the backend in the EP's own package", "The recipe sets `backend_type` instead."
                    )
                continue
            entry = self.kind.entry
            try:
                option = find_option(entry, name)
                normalize(option, _format_option(value), booleans=entry.booleans, names=entry.canonical_names(option.name))
            except (UnknownName, BadValue) as error:
                hint = (
                    error.hint or "If the option is correct, add it to `provider_options` and set `allow_unknown_options: true`."
                )
                self.skip_setting(what, error.message, hint)
            else:
                self.provider_options[option.name] = _format_option(value)

    def add_session_keys(self, keys: Mapping[str, object], shown: str) -> None:
        """Import the session configuration entries that a recipe may set."""
        for name, value in keys.items():
            text, what = _format_option(value), f"{shown} {name}={_format_option(value)}"
            if _IMPLIED.get(name) == text:
                continue
            if name == _PREFIX:
                self.compile["node_name_prefix"] = text
                continue
            try:
                normalize(find_session_key(name), text, booleans=("0", "1"), names={})
            except (UnknownName, BadValue) as error:
                reserved = isinstance(error, UnknownName) and error.reserved
                hint = "If the entry is correct, add it to `session_options` and set `allow_unknown_session_keys: true`."
                self.skip_setting(what, error.message, error.hint or ("" if reserved else hint))
            else:
                self.session_options[name] = text

    def drop_prefix(self) -> None:
        """Remove the node name prefix if the EP finds contexts by node name."""
        rule = self.kind.entry.node_names
        if rule is not None and rule.found_by == "name" and "node_name_prefix" in self.compile:
            what = f"{_PREFIX}={self.compile.pop('node_name_prefix')}"
            self.skip_setting(what, rule.why, "Nodes in a shared context already have different names.")

    def drop_refused(self, target: str) -> None:
        """Remove options until the EP accepts the combination of the remaining options for `target`."""
        entry, asked = self.kind.entry, self.kind.start.option
        while True:
            options = {**self.kind.start.options, **self.provider_options, **({asked: target} if asked and target else {})}
            canonical = {
                name: normalize(find_option(entry, name), value, booleans=entry.booleans, names=entry.canonical_names(name))
                for name, value in options.items()
            }
            found = [
                (names, reason) for names, reason in find_refusals(entry, canonical) if set(names) & self.provider_options.keys()
            ]
            dropped = next(
                ((name, reason) for names, reason in found for name in names if name in self.provider_options and name != asked),
                None,
            )
            if dropped is None:
                return
            name, reason = dropped
            self.skip_setting(
                f"the option {name}={self.provider_options.pop(name)}",
                reason,
                "If the value is intended, add the option to the recipe.",
            )


def get_ep_start(ep: str, device: str | None, where: Location | str | None) -> StarterKind:
    """Return the catalog's starting point of a recipe for an EP. Raises PlanError for an EP that does not compile ahead of time."""
    every_kind = list_starter_kinds().values()
    kinds = [kind for kind in every_kind if kind.entry.ep == ep]
    if not kinds:
        known = ", ".join(dict.fromkeys(kind.entry.ep for kind in every_kind))
        raise make_import_error(
            f"{ep} does not compile ahead of time, or its recipe must be written by hand", where, f"Supported EPs: {known}."
        )
    on_device = [kind for kind in kinds if kind.start.device.get("type") == device]
    return (on_device or kinds)[0]


def _format_option(value: object) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a JSON object, or else an empty object."""
    return value if isinstance(value, Mapping) else {}


def as_sequence(value: object) -> Sequence[Any]:
    """Return `value` if it is a JSON array, or else an empty array."""
    return value if isinstance(value, list) else ()
