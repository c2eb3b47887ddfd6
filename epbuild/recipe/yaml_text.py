"""Writer of YAML that YAML 1.1 parsers and epbuild read as the same recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from epbuild.recipe.nodes import KeyPath, MappingNode, Node, ScalarNode, SequenceNode

_PLAIN_TEXT = re.compile(r"(?![-.])[A-Za-z0-9_./=-]*[A-Za-z_/][A-Za-z0-9_./=-]*")
_NOT_TEXT = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
_WIDTH = 100


def format_scalar(text: str) -> str:
    """Return a text as a YAML scalar, with quotes if necessary."""
    if _PLAIN_TEXT.fullmatch(text) and text.lower() not in _NOT_TEXT and not re.fullmatch(r"[0-9.]+e[0-9]+", text.lower()):
        return text
    import yaml

    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1 << 20)).strip()


def write_yaml(root: MappingNode, comments: Mapping[KeyPath, str]) -> str:
    """Return the YAML text of a mapping. `comments` maps the paths of keys and items to comments at the end of their lines."""
    return "\n".join(_Writer(comments).write_mapping(root, "", ())) + "\n"


class _Writer:
    def __init__(self, comments: Mapping[KeyPath, str]) -> None:
        self._comments = comments

    def write_mapping(self, node: MappingNode, margin: str, path: KeyPath) -> Iterator[str]:
        for key, entry in node.entries.items():
            yield from self._write_value(f"{margin}{format_scalar(key)}:", entry.node, f"{margin}  ", (*path, key))

    def _write_value(self, beginning: str, node: Node, margin: str, path: KeyPath) -> Iterator[str]:
        """Yield the lines of a value. The first line starts with `beginning`, which is a key or the dash of a list item."""
        comment = f"    # {self._comments[path]}" if path in self._comments else ""
        short = _format_inline(node)
        if short is not None and (not isinstance(node, SequenceNode) or len(f"{beginning} {short}") <= _WIDTH):
            yield f"{beginning} {short}{comment}"
            return
        yield f"{beginning}{comment}"
        if isinstance(node, MappingNode):
            yield from self.write_mapping(node, margin, path)
        elif isinstance(node, SequenceNode):
            for index, item in enumerate(node.items):
                yield from self._write_item(item, margin, (*path, index))

    def _write_item(self, node: Node, margin: str, path: KeyPath) -> Iterator[str]:
        if not isinstance(node, MappingNode) or not node.entries:
            yield from self._write_value(f"{margin}-", node, f"{margin}  ", path)
            return
        first, *others = self.write_mapping(node, f"{margin}  ", path)
        yield f"{margin}- {first.lstrip()}"
        yield from others


def format_flow(node: Node) -> str:
    """Return a node as YAML in flow style, on one line."""
    match node:
        case ScalarNode():
            return _format_node(node)
        case SequenceNode():
            return f"[{', '.join(map(format_flow, node.items))}]"
        case _:
            items = (f"{format_scalar(key)}: {format_flow(entry.node)}" for key, entry in node.entries.items())
            return f"{{{', '.join(items)}}}"


def _format_inline(node: Node) -> str | None:
    """Return a scalar, a list of scalars or an empty mapping as one line. Return None for any other node."""
    match node:
        case ScalarNode():
            return _format_node(node)
        case SequenceNode():
            items = [_format_node(item) for item in node.items if isinstance(item, ScalarNode)]
            return f"[{', '.join(items)}]" if len(items) == len(node.items) else None
        case _:
            return None if node.entries else "{}"


def _format_node(node: ScalarNode) -> str:
    if isinstance(node.value, str):
        return format_scalar(node.value)
    return "null" if node.value is None else node.written
