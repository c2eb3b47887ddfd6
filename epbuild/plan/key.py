"""Action keys, which are digests of JSON documents, and comparison of documents.

A document lists everything that an action's result depends on. It never contains an absolute path, a time, a host name, or the order of
the recipe's keys. `compare_documents` finds a difference to show if and only if two documents have different keys. Every out-of-date action
therefore has a reason to show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any

from msgspec import Struct

from epbuild.core.differences import Kind, Place, compare_facts, format_value, list_facts
from epbuild.core.digest import hash_document
from epbuild.core.redact import conceal_text

_ORDERS = {"members": "member order", "eps": "EP order"}
"""Lists whose items are identified by name, with the phrase for a changed order."""
_CONSEQUENCES: Sequence[Set[str]] = ({"order"}, {"files", "image files"})
"""Parts of an output's document that depend on other parts. They are shown only if no other part has changed."""
_WHOLE = {*_ORDERS, "custom_ops", "made"}
"""Parts whose items are shown as one change when they are added or removed."""
_LISTS = {("prepare", "command")}
"""Lists that are shown as one change, because a single item has no meaning."""


class Change(Struct, frozen=True):
    """One difference between two documents. `place` is the path of the value. A missing value is None.

    The values of a changed order are lists of names. The value of an added or removed item is a mapping.
    """

    kind: Kind
    place: Place
    old: Any
    new: Any

    @property
    def what(self) -> str:
        """Phrase that names the value in the terms of the recipe or the toolchain."""
        return _describe_place(self.place)

    @property
    def shown_values(self) -> tuple[Any, Any]:
        """Old and new value. Both are None if either contains the value of a secret environment variable."""
        texts = [value for value in (self.old, self.new) if isinstance(value, str)]
        return (None, None) if any(conceal_text(text) != text for text in texts) else (self.old, self.new)

    def __str__(self) -> str:
        if self.shown_values != (self.old, self.new):
            return f"{self.what} {self.kind}"
        old, new = format_value(self.old), format_value(self.new)
        if self.kind == "changed":
            return f"{self.what} changed: {old} -> {new}"
        value = self.new if self.kind == "added" else self.old
        if isinstance(value, Mapping):
            return f"{self.what} {self.kind}"
        return f"{self.what} added: {new}" if self.kind == "added" else f"{self.what} removed (was {old})"


class KeyDocument(Mapping[str, Any]):
    """Key document that is built when it is first read, because the documents of most current actions are never read."""

    def __init__(self, build: Callable[[], Mapping[str, Any]]) -> None:
        self._build = build

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """The document as a plain mapping, which can be encoded."""
        return self._build()

    def __getitem__(self, name: str) -> Any:
        return self.content[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)


def compute_action_key(document: Mapping[str, Any]) -> str:
    return hash_document(document)


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the reasons why two keys differ: a sentence for each difference between their documents."""
    return [str(change) for change in compare_documents(old, new)]


def compare_documents(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return all differences between two documents, without duplicates. The list is empty exactly if the keys are equal."""
    whole = (_find_items(old) ^ _find_items(new)) | _find_shapes(old) | _find_shapes(new) | _LISTS
    found = [Change(*fact) for fact in compare_facts(old, new, whole=whole)]
    for part in _ORDERS:
        orders = [[item["name"] for item in document.get(part, [])] for document in (old, new)]
        common = set(orders[0]) & set(orders[1])
        if len({tuple(name for name in order if name in common) for order in orders}) > 1:
            found.append(Change("changed", (part,), *orders))
    for parts in _CONSEQUENCES[::-1]:
        found = [change for change in found if change.place[0] not in parts] or found
    return found


def _find_items(document: Mapping[str, Any]) -> set[Place]:
    """Return the places of the items that are shown as one change when they are added or removed."""
    return {place[:2] for place in list_facts(document) if place[0] in _WHOLE}


def _find_shapes(document: Mapping[str, Any]) -> set[Place]:
    """Return the places of the shapes of inputs. Each shape is shown as one change."""
    return {place[:4] for place in list_facts(document) if place[0] == "members" and place[2:3] == ("inputs",)}


def _describe_place(place: Place) -> str:
    match place:
        case (part,) if part in _ORDERS:
            return _ORDERS[part]
        case ("members", name) | ("members" | "source", name, "graph"):
            return f"model {name}"
        case ("members" | "source", name, "external", location):
            return f"model {name}: external data {location}"
        case ("members", name, "free_dimensions", dimension):
            return f"model {name}: size of dimension {dimension}"
        case ("members", name, "denoted_dimensions", denotation):
            return f"model {name}: size of denotation {denotation}"
        case ("members", name, "read"):
            return f"model {name}: loading of the graph"
        case ("members", name, "inputs", value) | ("source", name, "inputs", value, *_):
            return f"model {name}: sizes of input {value}"
        case ("members", name, *rest):
            return f"model {name}: {' '.join(rest).replace('_', ' ')}"
        case ("prepare", "options", *rest):
            return f"option {'.'.join(rest)}"
        case ("prepare", "option_files", option, *_):
            return f"the files of option {option}"
        case ("prepare", *_):
            return "the command"
        case ("staged", name):
            return name.partition("/")[2]
        case ("script",):
            return "epbuild's script"
        case ("eps", ep):
            return f"EP {ep}"
        case ("eps", ep, "catalog"):
            return f"epbuild's catalog of {ep}"
        case ("eps", ep, "options", name) | ("options", ep, name):
            return f"option {name} of {ep}"
        case ("eps", ep, "files", name):
            return f"the file of option {name} of {ep}"
        case ("eps", ep, *rest):
            return f"{ep}: {' '.join(rest)}"
        case ("environment", name):
            return f"environment variable {name}"
        case ("custom_ops", name):
            return f"custom operators {name}"
        case ("custom_ops", name, *_):
            return f"the library of custom operators {name}"
        case ("session_options", name):
            return f"session key {name}"
        case ("session_files", name):
            return f"the file of session key {name}"
        case ("toolchain", "host", "cpu"):
            return "this machine's CPU"
        case ("toolchain", "host", "cpus"):
            return "the number of CPUs"
        case ("toolchain", "host", "drivers", name):
            return name
        case ("toolchain", "distributions", name):
            return f"package {name}"
        case ("toolchain", "libraries", name):
            return f"library {name}"
        case ("toolchain", "files", package):
            return f"a file of package {package}"
        case ("catalog", "session"):
            return "epbuild's catalog of session keys"
        case ("contract" | "format", *_):
            return "epbuild's own compile contract"
        case ("epbuild",):
            return "epbuild's version"
        case ("recipe",):
            return "the recipe's name"
        case ("order", group):
            return f"the order of the models of {group}"
        case ("image files", name):
            return f"the image's {name}"
        case ("files", path):
            return path
        case ("models", model):
            return f"the file name of model {model}"
        case ("context binaries", model, ep):
            return f"the context binary's file name for model {model} and {ep}"
        case ("parts", part, first, *rest):
            return f"{part}: {_describe_place((first, *rest))}"
        case ("made", step):
            return f"the result of {step}"
        case ("made", step, "key"):
            return f"the key of {step}"
        case ("made", step, "artifacts", name):
            return f"{name} from {step}"
    return " ".join(place).replace("_", " ")
