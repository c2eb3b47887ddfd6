"""Reader of groups and their members."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap
from typing import Any

from epbuild.core.errors import Position, Problem
from epbuild.recipe import models
from epbuild.recipe.fields import MappingReader
from epbuild.recipe.model import (
    CompileSettings,
    Expectation,
    GenaiChoice,
    GroupMember,
    GroupSpec,
    InitializerSharing,
    Merge,
    Reference,
    Setting,
)
from epbuild.recipe.models import overlay_choice, read_figures, read_measure, read_verify
from epbuild.recipe.names import name_problem
from epbuild.recipe.nodes import (
    KeyedNode,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    expand_scalar,
    merge_nodes,
    render,
    replace_entries,
)
from epbuild.recipe.problems import MISSING_KEY
from epbuild.recipe.template import substitute

LATER = {**dict.fromkeys(("file", "node_name_prefix"), ("model",)), **models.LATER, **models.MEASURE_LATER}
"""Keys of a group whose templates contain names that are substituted later, such as the name of each model."""

_SHORTHANDS = {"max_growth": "bytes", "latency_ms": "p50"}
"""Keys of `expect` that may be a single number, with the key that the number is short for."""


def read_group(
    name: str,
    where: Position,
    fields: MappingReader,
    members: tuple[GroupMember, ...],
    targets: tuple[Reference, ...],
    allow_failure: frozenset[str],
) -> GroupSpec:
    """Return a group with its members and targets. `allow_failure` lists targets for which the group may fail."""
    sets = tuple(_read_sharing_sets(fields))
    return GroupSpec(
        name=name,
        where=where,
        members=members,
        targets=targets,
        share_weights=fields.flag("share_weights") or bool(sets),
        share_initializers=_read_initializer_sharing(fields),
        allow_nondeterminism=fields.flag("allow_nondeterminism"),
        timeout=fields.number("timeout"),
        memory=fields.size("memory"),
        merge=_read_merge(fields.mapping("merge")) if "merge" in fields.entries else None,
        genai=_read_genai(fields.mapping("genai")) if "genai" in fields.entries else None,
        allow_failure=allow_failure,
        sharing_sets=sets,
        adapters=fields.paths("adapters"),
        measure=read_measure(fields),
    )


def _read_sharing_sets(group: MappingReader) -> Iterator[tuple[Reference, ...]]:
    for item in group.items("share_weights"):
        names = item.items if isinstance(item, SequenceNode) else ()
        yield tuple(Reference(str(name.value), name.where) for name in names if isinstance(name, ScalarNode))


def read_member(model: Reference, group: MappingReader, own: MappingReader) -> GroupMember:
    """Read a member of a group. The member's own settings override the group's settings."""
    name = own.text("name") or model.name
    if name != model.name and (problem := name_problem(name, own.where_of("name"))):
        own.problems.append(problem)
    settings, expected = _overlay_settings(group, own, "compile"), _overlay_settings(group, own, "expect")
    sizes = own.mapping("dimensions")
    return GroupMember(
        name,
        model,
        _read_compile_settings(settings, name) if settings is not None else CompileSettings(),
        _read_expectation(expected) if expected is not None else Expectation(),
        own.shapes("input_shapes"),
        overlay_choice(read_verify(own), read_verify(group)),
        compiled=settings is None or settings.is_mapping,
        dimensions={name: sizes.integer(name) or 0 for name in sizes.entries},
        dimension_places={name: entry.name_where for name, entry in sizes.entries.items()},
    )


def _overlay_settings(group: MappingReader, own: MappingReader, key: str) -> MappingReader | None:
    """Return the settings of a group with the member's own settings merged over them, key by key.

    Return None if neither the group nor the member has settings.
    """
    nodes = [_expand_shorthands(fields.entries[key].node) for fields in (group, own) if key in fields.entries]
    match nodes:
        case [MappingNode() as base, MappingNode() as over]:
            return own.of(merge_nodes(base, over))
        case _:
            return own.of(nodes[-1]) if nodes else None


def _expand_shorthands(node: Node) -> Node:
    """Return settings in which numbers of `_SHORTHANDS` are mappings, so that a merge keeps their other keys."""
    if not isinstance(node, MappingNode):
        return node
    expanded = {
        key: KeyedNode(node.entries[key].name_where, _expand_shorthands(expand_scalar(node.entries[key].node, short)))
        for key, short in _SHORTHANDS.items()
        if key in node.entries
    }
    return replace_entries(node, {**node.entries, **expanded})


def _read_compile_settings(fields: MappingReader, model: str) -> CompileSettings:
    defaults, initializers = CompileSettings(), fields.mapping("initializers")
    store: Any = initializers.text("store") or defaults.initializers
    level: Any = fields.text("graph_optimization_level")
    file, threshold = initializers.text("file"), initializers.integer("threshold")
    prefix = fields.text("node_name_prefix")
    if store == "external" and initializers.lacks("file"):
        fields.problems.append(Problem(MISSING_KEY, "'store: external' requires 'file'", initializers.where))
    return CompileSettings(
        embed=fields.flag("embed"),
        graph_optimization_level=level,
        initializers=store,
        external_file=file if store == "external" else None,
        external_threshold=defaults.external_threshold if threshold is None else threshold,
        initializer_names=tuple(name for name, _ in initializers.texts("names")) if store != "inline" else (),
        node_name_prefix=render(substitute(prefix, {"model": model})) if prefix else None,
        embed_where=fields.where_of("embed") if "embed" in fields.entries else None,
        initializers_where=initializers.where if "initializers" in fields.entries else None,
        prefix_where=fields.where_of("node_name_prefix") if prefix else None,
    )


def _read_expectation(fields: MappingReader) -> Expectation:
    if "max_growth" in fields.entries and fields.lacks("baseline"):
        hint = "Write the path of an earlier report (`epbuild report -o release.json`) or of outputs."
        fields.problems.append(Problem(MISSING_KEY, "'max_growth' requires 'baseline'", fields.where_of("max_growth"), hint))
    entry = fields.entries.get("max_growth")
    growth = fields.expand_shorthand(entry.node, "bytes") if entry is not None else None
    return Expectation(
        ep_context_nodes=fields.integer("ep_context_nodes"),
        fallback_nodes=fields.integer_or_any("fallback_nodes"),
        min_shared_ratio=fields.mapping("shared_bytes").number("min_ratio"),
        max_bytes=fields.size("max_bytes"),
        max_growth=growth.number("bytes") if growth is not None else None,
        baseline=fields.path("baseline"),
        figures=read_figures(fields, fields.size("peak_memory")),
        figure_growth=read_figures(growth, growth.number("peak_memory")) if growth is not None else (),
        where=fields.where,
    )


def _read_initializer_sharing(group: MappingReader) -> InitializerSharing | None:
    entry = group.entries.get("share_initializers")
    if entry is None:
        return None
    where = entry.node.where
    if not isinstance(entry.node, MappingNode):
        return InitializerSharing(where) if group.flag("share_initializers") else None
    threshold = group.mapping("share_initializers").integer("threshold")
    return InitializerSharing(where) if threshold is None else InitializerSharing(where, threshold)


def _read_merge(fields: MappingReader) -> Merge:
    name = fields.text("name") or ""
    if name and (problem := name_problem(name, fields.where_of("name"))):
        fields.problems.append(problem)
    connect, prefixes = fields.mapping("connect"), fields.mapping("prefixes")
    return Merge(
        name=name,
        where=fields.where,
        connect=tuple(_read_connections(connect)) if "connect" in fields.entries else None,
        prefixes={
            member: Setting(prefixes.text(member) or "", entry.node.where, entry.name_where)
            for member, entry in prefixes.entries.items()
        },
    )


def _read_genai(fields: MappingReader) -> GenaiChoice:
    roles = fields.mapping("roles")
    return GenaiChoice(
        where=fields.where,
        config=fields.path("config") or Reference("", fields.where),
        # The schema ensures that all keys are roles.
        roles={role: tuple(starmap(Reference, roles.one_or_more(role))) for role in roles.entries},  # type: ignore[misc]
        files=fields.paths("files"),
    )


def _read_connections(fields: MappingReader) -> Iterator[tuple[Reference, Reference]]:
    """Yield pairs of an output and an input that the output feeds. In the recipe, an output has one input or a list of inputs."""
    for output, entry in fields.entries.items():
        for value, where in fields.one_or_more(output):
            yield Reference(output, entry.name_where), Reference(value, where)
