"""Text of a recipe with its defaults written out.

The text is a recipe for the same folder, with the same plan and action keys. It contains the content of all extended and included
files. Templates are kept. A pattern of `models` is replaced with the matching files. A comment states the origin of each added
value.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec.structs import replace

from epbuild.catalog.catalog import entries_for, known_eps
from epbuild.catalog.preparations import get_preparation
from epbuild.core.errors import Position
from epbuild.recipe.default_targets import DEVICE_KEYS
from epbuild.recipe.defaults import DEFAULT_GROUPS
from epbuild.recipe.load import LoadedRecipe, load_with_nodes
from epbuild.recipe.model import GroupSpec, PrepareStep, Recipe
from epbuild.recipe.models import BUILT_IN
from epbuild.recipe.nodes import (
    KeyedNode,
    KeyPath,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    get_items,
    get_node,
    make_scalar,
    make_sequence,
    prune_paths,
    replace_entries,
)
from epbuild.recipe.paths import rebase_path
from epbuild.recipe.schema import get_recipe_schema, validate
from epbuild.recipe.variables import Override, read_overrides
from epbuild.recipe.yaml_text import write_yaml

_DEFAULT = "default"
_SECTIONS = ("models", "targets", "groups", "outputs")
"""Sections in whose definitions the schema's defaults are written out."""
_EXPECT, _FALLBACK = "expect", "fallback_nodes"

_Entries = dict[str, KeyedNode]


def explain(path: Path, *, settings: Sequence[str] = ()) -> str:
    """Return the text of the recipe at `path` with its defaults written out.

    `settings` override the values of variables.

    Raises RecipeError.
    """
    loaded = load_with_nodes(path, settings=settings)
    overrides, _ = read_overrides(settings)
    return _Explanation(loaded, overrides).text()


@dataclass
class _Explanation:
    loaded: LoadedRecipe
    overrides: Mapping[str, Override]
    comments: dict[KeyPath, str] = field(default_factory=dict)
    """Origin of each added value, by the value's path."""

    def text(self) -> str:
        raw, root = self.loaded.raw, self.loaded.written
        self._compare(raw, root, ())
        entries: _Entries = dict(root.entries)
        if "vars" in entries:
            entries["vars"] = replace(entries["vars"], node=self._write_out_variables(entries["vars"].node))
        for name in _SECTIONS:
            if name in entries:
                entries[name] = replace(entries[name], node=self._write_out_section(name, entries[name].node))
        written = raw.entries.get("groups")
        if written is not None and isinstance(written.node, MappingNode) and DEFAULT_GROUPS in written.node.entries:
            kept = written.node.entries[DEFAULT_GROUPS]
            groups = entries["groups"].node
            if isinstance(groups, MappingNode) and isinstance(kept.node, ScalarNode):
                entries["groups"] = replace(
                    entries["groups"], node=replace_entries(groups, {DEFAULT_GROUPS: kept, **groups.entries})
                )
        order = [key for key in get_recipe_schema()["properties"] if key in entries]
        paths = _Paths(self.loaded)
        whole = {key: replace(entries[key], node=paths.rebased(entries[key].node)) for key in order}
        known = self.comments
        # The comment on a value also covers all values inside it.
        outer = {path: text for path, text in known.items() if not any(path[:end] in known for end in range(1, len(path)))}
        return write_yaml(replace_entries(root, whole), outer)

    def _compare(self, raw: Node, full: Node, path: KeyPath, source: str = _DEFAULT) -> None:
        """Add a comment for each value of `full` that is not in `raw`."""
        if isinstance(full, SequenceNode) and isinstance(raw, SequenceNode) and len(full.items) == len(raw.items):
            for index, (before, after) in enumerate(zip(raw.items, full.items, strict=True)):
                self._compare(before, after, (*path, index))
        if not isinstance(full, MappingNode) or not isinstance(raw, MappingNode):
            return
        short = [key for key in DEVICE_KEYS if key in raw.entries and raw.entries[key] != full.entries.get(key)]
        for key, entry in full.entries.items():
            inner = f"from {short[0]}" if short and key != "toolchain" else source
            if key in raw.entries and key not in short:
                self._compare(raw.entries[key].node, entry.node, (*path, key), inner)
            else:
                self.comments[*path, key] = inner

    def _write_out_variables(self, section: Node) -> Node:
        if not isinstance(section, MappingNode):
            return section
        entries: _Entries = dict(section.entries)
        for name, override in self.overrides.items():
            if name in entries:
                entries[name] = replace(entries[name], node=make_scalar(section.where, override.value))
                self.comments["vars", name] = "--set"
        return replace_entries(section, entries)

    def _write_out_section(self, name: str, section: Node) -> Node:
        """Return a section with the schema's defaults written out in its definitions."""
        part = get_recipe_schema()["properties"][name]
        if isinstance(section, SequenceNode):
            items = [self._write_out_definition(item, part["items"], (name, index)) for index, item in enumerate(section.items)]
            return make_sequence(section.where, items)
        if not isinstance(section, MappingNode):
            return section
        entries = {}
        for key, entry in section.entries.items():
            node = entry.node
            if name == "groups" and isinstance(node, MappingNode):
                node = self._add_expectation(node, entry.name_where, (name, key))
            entries[key] = replace(entry, node=self._write_out_definition(node, part["additionalProperties"], (name, key)))
        return replace_entries(section, entries)

    def _write_out_definition(self, node: Node, part: Mapping[str, Any], path: KeyPath) -> Node:
        """Return a definition with the schema's defaults written out.

        Defaults that would make the definition invalid are skipped.
        """
        filled = self._fill_in(node, part, path)
        wrong = [found.path for found in validate(path, filled) if self.comments.get(found.path) == _DEFAULT]
        return prune_paths(filled, [place[len(path) :] for place in wrong])

    def _fill_in(self, node: Node, part: Mapping[str, Any], path: KeyPath) -> Node:
        """Return a mapping with the schema's defaults written out at all levels. Keys are in the schema's order."""
        while "$ref" in part:
            part = get_recipe_schema()["$defs"][part["$ref"].removeprefix("#/$defs/")]
        if not isinstance(node, MappingNode):
            return node
        entries: _Entries = {}
        for key, known in part.get("properties", {}).items():
            if key in node.entries:
                entries[key] = replace(node.entries[key], node=self._fill_in(node.entries[key].node, known, (*path, key)))
            elif isinstance(known.get("default"), str | int | float):
                entries[key] = KeyedNode(node.where, make_scalar(node.where, known["default"]))
                self.comments[*path, key] = _DEFAULT
        return replace_entries(node, {**entries, **{key: entry for key, entry in node.entries.items() if key not in entries}})

    def _add_expectation(self, group: MappingNode, where: Position, path: KeyPath) -> MappingNode:
        """Return a group with `expect: {fallback_nodes: 0}` if 0 is the default for all targets of the group."""
        entry = group.entries.get(_EXPECT)
        expect = entry.node if entry is not None else MappingNode(group.where, {}, 1, 0)
        groups = [known for known in self.loaded.recipe.groups.values() if known.where == where]
        if (
            not isinstance(expect, MappingNode)
            or _FALLBACK in expect.entries
            or not _allow_no_fallback(groups, self.loaded.recipe)
        ):
            return group
        self.comments[(*path, _EXPECT) if entry is None else (*path, _EXPECT, _FALLBACK)] = _DEFAULT
        number = KeyedNode(expect.where, make_scalar(expect.where, 0))
        filled = replace_entries(expect, {**expect.entries, _FALLBACK: number})
        return replace_entries(group, {**group.entries, _EXPECT: KeyedNode(where, filled)})


def _allow_no_fallback(groups: Sequence[GroupSpec], recipe: Recipe) -> bool:
    """Return whether no target of the groups ends with an EP that takes every node, such as the CPU EP."""
    names = {reference.name for group in groups for reference in group.targets}
    last = [recipe.targets[name].eps[-1].ep.name for name in names]
    return bool(last) and all(ep in known_eps() and not entries_for(ep)[0].takes_every_node for ep in last)


class _Paths:
    """Converter of paths in a recipe's files to paths relative to the recipe's folder."""

    def __init__(self, loaded: LoadedRecipe) -> None:
        self._recipe = loaded.recipe.file
        self._known: dict[Position, dict[str, str]] = {}
        """Converted paths, by the position and the text of each path as written."""
        for (where, text), path in loaded.paths.items():
            self._known.setdefault(where, {})[text] = path
        for model in loaded.recipe.models.values():
            for step in model.prepare:
                for item in _find_named_files(step):
                    self._known.setdefault(item.where, {})[str(item.value)] = rebase_path(
                        str(item.value), item.where, self._recipe
                    )

    def rebased(self, node: Node) -> Node:
        """Return a copy of a node with its paths relative to the recipe's folder."""
        if isinstance(node, MappingNode):
            return replace_entries(
                node, {key: replace(entry, node=self.rebased(entry.node)) for key, entry in node.entries.items()}
            )
        if isinstance(node, SequenceNode):
            items = [self.rebased(item) for item in node.items]
            return make_sequence(node.where, items)
        known = self._known.get(node.where)
        if known is None or not isinstance(node.value, str) or node.where.file == str(self._recipe):
            return node
        if "${" not in node.value:
            return make_scalar(node.where, known.get(node.value, node.value))
        if all(text == path for text, path in known.items()):
            return node
        folder = os.path.relpath(Path(node.where.file).parent, self._recipe.parent)
        return make_scalar(node.where, f"{PurePosixPath(Path(folder).as_posix())}/{node.value}")


def _find_named_files(step: PrepareStep) -> Iterator[ScalarNode]:
    """Yield the paths in the options of a built-in preparation."""
    if step.kind not in BUILT_IN or not isinstance(step.options, MappingNode):
        return
    for option in get_preparation(step.kind).files:
        node = get_node(step.options.entries, option)
        for item in get_items(node) or (node,):
            if isinstance(item, ScalarNode):
                yield item
