"""The action key: the digest of a canonical JSON document that names everything that an action's result depends on.

One walker (`facts`) reads a document, for the digest's sake and for the explanation's, so that *why* and *whether* cannot disagree. A
document never holds an absolute path, a time, a host name, or the order of the recipe's keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epbuild.canonical import canonical_json
from epbuild.catalog import session_keys
from epbuild.plan.steps import SessionGroup

FORMAT = 1
CONTRACT = 1
"""Raised when the worker or the session group contract changes what a compile writes."""

_DIGEST_LENGTH = 64
_SHOWN_DIGITS = 8


def key_document(group: SessionGroup, digests: Mapping[Path, str], toolchain: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a session group. `digests` are the SHA-256 of its files; `toolchain` is its fingerprint's document."""
    target = group.target
    return {
        "format": FORMAT,
        "contract": CONTRACT,
        "members": [
            {
                "name": member.name,
                "graph": digests[member.graph],
                "external": {location: digests[path] for location, path in member.external.items()},
                "source": member.source,
                "output": member.output,
                "external_initializers": group.external_file(member),
            }
            for member in group.members
        ],
        "share_weights": group.share,
        "ep": target.entry.ep,
        "device": {
            "type": target.device.type,
            "vendor": target.device.vendor,
            "metadata": dict(target.device.metadata),
            "virtual": target.device.virtual,
        },
        "provider_options": _loud(target.provider_options, target.silent_options),
        "session_options": _loud(target.session_options, target.silent_options),
        "compile": {
            "embed": group.compile.embed,
            "graph_optimization_level": group.compile.graph_optimization_level,
            "external_threshold": group.compile.external_threshold if group.compile.external_file else None,
        },
        "catalog": {target.entry.ep: target.entry.revision, "session": session_keys().revision},
        "toolchain": toolchain,
    }


def action_key(document: Mapping[str, Any]) -> str:
    """The SHA-256 of the document's canonical form, in hexadecimal."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()


def facts(document: Any, place: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every leaf of a document by its place; the members of a list go by their name where they have one."""
    if isinstance(document, Mapping):
        children = [(str(name), value) for name, value in document.items()]
    elif isinstance(document, list):
        children = [(str(item["name"]) if isinstance(item, Mapping) else str(i), item) for i, item in enumerate(document)]
    else:
        return {place: document}
    return {leaf: value for name, child in children for leaf, value in facts(child, (*place, name)).items()}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Why two keys differ: one sentence for each fact that was added, removed or changed, and one when only an order changed."""
    before, after = facts(old), facts(new)
    sentences = []
    for place in dict.fromkeys((*before, *after)):
        if place not in after:
            sentences.append(f"{_subject(place)} removed (was {_shown(before[place])})")
        elif place not in before:
            sentences.append(f"{_subject(place)} added: {_shown(after[place])}")
        elif before[place] != after[place]:
            sentences.append(f"{_subject(place)} changed: {_shown(before[place])} -> {_shown(after[place])}")
    if not sentences and canonical_json(old) != canonical_json(new):
        names = [", ".join(member["name"] for member in document.get("members", [])) for document in (old, new)]
        sentences.append(f"member order changed: {names[0]} -> {names[1]}")
    return sentences


def _subject(place: tuple[str, ...]) -> str:
    match place:
        case ("members", name, "graph"):
            return f"model {name}"
        case ("members", name, "external", location):
            return f"model {name}: external data {location}"
        case ("members", name, *rest):
            return f"model {name}: {' '.join(rest).replace('_', ' ')}"
        case ("provider_options", name):
            return f"option {name}"
        case ("session_options", name):
            return f"session key {name}"
        case ("toolchain", "distributions", name):
            return f"package {name}"
        case ("toolchain", "libraries", name):
            return f"library {name}"
        case ("contract" | "format", *_):
            return "epbuild's own compile contract"
    return " ".join(place).replace("_", " ")


def _shown(value: Any) -> str:
    if isinstance(value, str) and len(value) == _DIGEST_LENGTH and all(digit in "0123456789abcdef" for digit in value):
        return value[:_SHOWN_DIGITS]
    return "nothing" if value is None else str(value)


def _loud(options: Mapping[str, str], silent: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in silent}
