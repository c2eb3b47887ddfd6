"""What a recipe says of one group, read from its mapping: how its models are compiled, and what they are for one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from epbuild.core.errors import Position, Problem
from epbuild.recipe.expand import name_problem
from epbuild.recipe.fields import Fields
from epbuild.recipe.model import CompileSettings, Expectation, GenaiChoice, InitializerSharing, Merge, Reference, Setting
from epbuild.recipe.problems import MISSING_KEY
from epbuild.recipe.source import MappingNode, SequenceNode
from epbuild.recipe.template import render, substitute

LATER = dict.fromkeys(("file", "node_name_prefix"), ("model",))
"""The texts of a group that may hold the name of each of its models."""


def read_compile_settings(fields: Fields, model: str, problems: list[Problem]) -> CompileSettings:
    """How `model` is compiled; what is wrong with that is added to `problems`."""
    initializers = fields.mapping("initializers")
    store: Any = initializers.text("store") or CompileSettings.initializers
    level: Any = fields.text("graph_optimization_level")
    file, threshold = initializers.text("file"), initializers.whole("threshold")
    prefix = fields.text("node_name_prefix")
    if store == "external" and initializers.lacks("file"):
        problems.append(Problem(MISSING_KEY, "External initializers need a 'file'.", initializers.where))
    return CompileSettings(
        embed=fields.flag("embed"),
        graph_optimization_level=level,
        initializers=store,
        external_file=file if store == "external" else None,
        external_threshold=CompileSettings.external_threshold if threshold is None else threshold,
        node_name_prefix=render(substitute(prefix, {"model": model})) if prefix else None,
        embed_where=fields.where_of("embed") if "embed" in fields.entries else None,
        initializers_where=initializers.where if "initializers" in fields.entries else None,
        prefix_where=fields.where_of("node_name_prefix") if prefix else None,
    )


def read_expectation(fields: Fields) -> Expectation:
    """What must be true of a compiled model."""
    return Expectation(
        ep_context_nodes=fields.whole("ep_context_nodes"),
        fallback_nodes=fields.whole_or_any("fallback_nodes"),
        min_shared_ratio=fields.mapping("shared_bytes").number("min_ratio"),
        where=fields.where,
    )


def read_initializer_sharing(group: Fields) -> InitializerSharing | None:
    """Whether the members of a group get one weights file."""
    entry = group.entries.get("share_initializers")
    if entry is None:
        return None
    where = entry.node.where
    if not isinstance(entry.node, MappingNode):
        return InitializerSharing(where) if group.flag("share_initializers") else None
    threshold = group.mapping("share_initializers").whole("threshold")
    return InitializerSharing(where, InitializerSharing.threshold if threshold is None else threshold)


def read_merge(fields: Fields, problems: list[Problem]) -> Merge:
    """How the models of a group become one; what is wrong with its name is added to `problems`."""
    name = fields.text("name") or ""
    if name and (problem := name_problem(name, fields.where_of("name"))):
        problems.append(problem)
    connect, prefixes = fields.mapping("connect"), fields.mapping("prefixes")
    return Merge(
        name=name,
        where=fields.where,
        connect=tuple(_connections(connect)) if "connect" in fields.entries else None,
        prefixes={
            member: Setting(prefixes.text(member, may_be_empty=True) or "", entry.node.where, entry.name_where)
            for member, entry in prefixes.entries.items()
        },
    )


def read_genai(fields: Fields, path: Callable[[str | None, Position], str | None]) -> GenaiChoice:
    """What onnxruntime-genai is told of a group; `path` makes a path relative to the recipe, whichever file it was written in."""
    roles = fields.mapping("roles")

    def file(text: str | None, where: Position) -> Reference:
        return Reference(path(text, where) or "", where)

    return GenaiChoice(
        where=fields.where,
        config=file(fields.text("config"), fields.where_of("config")),
        # The schema has seen that they are roles.
        roles={role: Reference(roles.text(role) or "", roles.where_of(role)) for role in roles.entries},  # type: ignore[misc]
        files=tuple(file(text, where) for text, where in fields.texts("files")),
    )


def _connections(fields: Fields) -> Iterator[tuple[Reference, Reference]]:
    """Each output with each of the inputs that it feeds: one, or a list of them."""
    for output, entry in fields.entries.items():
        several = isinstance(entry.node, SequenceNode)
        for value, where in fields.texts(output) if several else [(fields.text(output), entry.node.where)]:
            if value is not None:
                yield Reference(output, entry.name_where), Reference(value, where)
