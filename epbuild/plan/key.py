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
from epbuild.plan.steps import Member, PlannedEp, SessionGroup

FORMAT = 2
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
        "members": [_member(member, digests) for member in group.members],
        "share_weights": group.share,
        "eps": [_ep(ep, digests) for ep in target.eps],
        "session_options": _loud(target.session_options, target.silent),
        "session_files": {name: digests[file.path] for name, file in target.session_files.items() if name not in target.silent},
        "environment": dict(target.environment),
        "catalog": {"session": session_keys().revision},
        "toolchain": toolchain,
    }


def _member(member: Member, digests: Mapping[Path, str]) -> dict[str, Any]:
    settings = member.compile
    return {
        "name": member.name,
        "graph": digests[member.graph],
        "external": {location: digests[path] for location, path in member.external.items()},
        "source": member.source,
        "output": member.output,
        "read": member.model.read,
        "free_dimensions": dict(member.model.free_dimensions),
        "denoted_dimensions": dict(member.model.denoted_dimensions),
        "compile": {
            "embed": settings.embed,
            "graph_optimization_level": settings.graph_optimization_level,
            "initializers": settings.initializers,
            "external_file": member.external_file,
            "external_threshold": settings.external_threshold if settings.external_file else None,
            "node_name_prefix": settings.node_name_prefix,
        },
    }


def _ep(ep: PlannedEp, digests: Mapping[Path, str]) -> dict[str, Any]:
    return {
        "name": ep.entry.ep,
        "catalog": ep.catalog,
        "device": {
            "type": ep.device.type,
            "vendor": ep.device.vendor,
            "metadata": dict(ep.device.metadata),
            "virtual": ep.device.virtual,
        },
        "library": digests[ep.library] if ep.library else None,
        "options": _loud(ep.provider_options, ep.silent),
        "files": {name: digests[file.path] for name, file in ep.files.items() if name not in ep.silent},
    }


def action_key(document: Mapping[str, Any]) -> str:
    """The SHA-256 of the document's canonical form, in hexadecimal."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()


def facts(document: Any, place: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every leaf of a document by its place; the members of a list go by their name where they have one."""
    if isinstance(document, Mapping):
        children = [(str(name), value) for name, value in document.items()]
    elif isinstance(document, list):
        children = [(_name_of(item, str(number)), item) for number, item in enumerate(document)]
    else:
        return {place: document}
    return {leaf: value for name, child in children for leaf, value in facts(child, (*place, name)).items()}


def _name_of(item: Any, otherwise: str) -> str:
    return str(item.get("name", otherwise)) if isinstance(item, Mapping) else otherwise


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
        for what, part in (("member", "members"), ("EP", "eps")):
            names = [", ".join(item["name"] for item in document.get(part, [])) for document in (old, new)]
            if names[0] != names[1]:
                sentences.append(f"{what} order changed: {names[0]} -> {names[1]}")
    return sentences


def _subject(place: tuple[str, ...]) -> str:
    match place:
        case ("members", name, "graph"):
            return f"model {name}"
        case ("members", name, "external", location):
            return f"model {name}: external data {location}"
        case ("members", name, "free_dimensions" | "denoted_dimensions" as kind, dimension):
            return f"model {name}: {kind.replace('_', ' ')} {dimension}"
        case ("members", name, *rest):
            return f"model {name}: {' '.join(rest).replace('_', ' ')}"
        case ("eps", ep, "options", name):
            return f"option {name} of {ep}"
        case ("eps", ep, "files", name):
            return f"the file of option {name} of {ep}"
        case ("eps", ep, *rest):
            return f"{ep}: {' '.join(rest)}"
        case ("environment", name):
            return f"environment variable {name}"
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
