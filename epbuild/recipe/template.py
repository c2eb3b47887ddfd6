"""Templates in texts: `${name}`, and `$${` for a literal `${`.

A template refers to a known name. It cannot contain an expression. A reference to an environment variable may have a default,
which is used if the variable is unset or empty: `${env.NAME:-default}`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from epbuild.core.errors import Argument, BadText, Position, Problem, suggest_nearest
from epbuild.core.host import is_windows
from epbuild.core.redact import conceal
from epbuild.core.safepath import is_anchored
from epbuild.recipe.nodes import KeyedNode, MappingNode, Node, Scalar, ScalarNode, SequenceNode, render
from epbuild.recipe.problems import TEMPLATE, UNUSABLE, format_choices, quote_text

OUTPUT_NAMES = ("group", "target", "model", "first_model", "ep", "ep.short", "ep.binary")
"""Names that have values only in emit steps. Templates of outputs keep the names until `substitute` is called with the values."""

MAX_TEXT = 8192
"""Maximum length, in characters, of a text after its templates are substituted."""


class TemplateError(BadText):
    """Error for a template that cannot be substituted. If the reason is an unknown name, `name` is that name."""

    def __init__(self, message: str, hint: str | None = None, name: str | None = None) -> None:
        super().__init__(message, hint)
        self.name = name

    def problem(self, where: Position | Argument) -> Problem:
        """Return this error as a problem at the location `where`."""
        return Problem(TEMPLATE, self.message, where, self.hint)


class TemplateNames(Mapping[str, Scalar]):
    """Mapping of template names to values. It has the names that the recipe defines, and `env.<NAME>` for environment variables.

    The value of an environment variable is always a string. Iteration yields the recipe's names, followed by `env.<NAME>` as a
    placeholder for all environment variables.
    """

    def __init__(self, environment: Mapping[str, str], *values: Mapping[str, Scalar]) -> None:
        self._environment = environment
        self._values = values

    def with_values(self, values: Mapping[str, Scalar]) -> TemplateNames:
        """Return a copy with additional names, which override existing names."""
        return TemplateNames(self._environment, values, *self._values)

    def __getitem__(self, name: str) -> Scalar:
        for values in self._values:
            if name in values:
                return values[name]
        if not _VARIABLE.fullmatch(name):
            raise KeyError(name)
        value = self._environment[name.removeprefix(_ENVIRONMENT)]
        conceal(name.removeprefix(_ENVIRONMENT), value)
        if is_windows() and is_anchored(value):  # paths in a recipe have slashes
            value = value.replace("\\", "/")
            conceal(name.removeprefix(_ENVIRONMENT), value)
        if UNUSABLE.search(value):
            raise TemplateError(
                f"the value of {quote_text('${' + name + '}')} contains characters that are not allowed in a recipe"
            )
        return value

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys(name for values in reversed(self._values) for name in values)
        yield f"{_ENVIRONMENT}<NAME>"

    def __len__(self) -> int:
        return sum(1 for _ in self)


def substitute(text: str, names: Mapping[str, Scalar]) -> Scalar:
    """Return `text` with every `${name}` replaced.

    If the text is a single reference, return the value itself with its type. Raises TemplateError for a name that is not in
    `names`, a `${` without `}`, or a result longer than `MAX_TEXT`.
    """
    if "${" not in text:
        return text
    pieces = [piece if isinstance(piece, str) else _get_value(piece, names) for piece in _parse_template(text)]
    if len(pieces) == 1:
        return pieces[0]
    return _check_length("".join([piece if isinstance(piece, str) else render(piece) for piece in pieces]))


def find_variables(text: str) -> frozenset[str]:
    """Return the names that a template refers to, or an empty set if the template is invalid."""
    try:
        return frozenset(piece.name for piece in _parse_template(text) if isinstance(piece, _Name))
    except TemplateError:
        return frozenset()


def substitute_known(text: str, names: Mapping[str, Scalar], later: Collection[str]) -> str:
    """Replace references to `names` in `text`, but keep references to names in `later`. Return a template for `substitute`.

    Raises TemplateError for an unknown name, a `${` without `}`, or a result longer than `MAX_TEXT`.
    """
    if "${" not in text:
        return text
    done = ""
    literal = ""
    for piece in _parse_template(text):
        if isinstance(piece, str):
            literal += piece
        elif piece.name not in later:
            literal += render(_get_value(piece, names, later))
        else:
            if literal.endswith("$"):
                # A later substitution would interpret `$` followed by `${` as an escaped `${`.
                raise TemplateError(f"'$' is not allowed before {quote_text('${' + piece.name + '}')}")
            done += f"{escape(literal)}${{{piece.name}}}"
            literal = ""
    return _check_length(done + escape(literal))


class Pattern(Struct, frozen=True):
    """Node with templates. They are found once and substituted for each row of a matrix."""

    node: Node
    inner: Mapping[str | int, Pattern]
    """Patterns of the values inside the node that contain templates, by key or index. Empty for a scalar."""
    later: Collection[str]
    """Names in this scalar that the planner substitutes later."""

    def fill(self, names: Mapping[str, Scalar], problems: list[Problem]) -> Node:
        """Return the node with its templates substituted. Add a problem for each invalid template.

        Nodes without templates stay the same objects, so that all rows of a matrix share them. A node whose templates are all
        invalid is returned as the same object as well.
        """
        node = self.node
        if isinstance(node, ScalarNode):
            text = str(node.value)
            try:
                value = substitute_known(text, names, self.later) if self.later else substitute(text, names)
            except TemplateError as error:
                problems.append(error.problem(node.where))
                return node
            return ScalarNode(node.where, value, node.written)
        changed: dict[Any, Node] = {}
        for step, pattern in self.inner.items():
            filled = pattern.fill(names, problems)
            if filled is not pattern.node:
                changed[step] = filled
        if not changed:
            return node
        if isinstance(node, SequenceNode):
            items = tuple([changed.get(index, item) for index, item in enumerate(node.items)])
            return SequenceNode(node.where, items, node.size, node.height, node.gaps)
        entries = dict(node.entries)
        for key, filled in changed.items():
            entries[key] = KeyedNode(entries[key].name_where, filled)
        return MappingNode(node.where, entries, node.size, node.height, node.gaps)


def find_templates(node: Node, later: Mapping[str, Collection[str]], kept: Collection[str] = ()) -> Pattern | None:
    """Find the templates in the values of a node, but not in its keys. Return None if it has no templates.

    `later` maps keys, at any depth, to the names that the planner substitutes later in the values of these keys. `kept` are these
    names for the node itself.
    """
    if isinstance(node, ScalarNode):
        return None if _is_plain(node) else Pattern(node, {}, kept)
    children: Iterable[tuple[str | int, Node, Collection[str]]]
    if isinstance(node, MappingNode):
        children = ((key, entry.node, later.get(key, ())) for key, entry in node.entries.items() if not _is_plain(entry.node))
    else:
        children = ((index, item, kept) for index, item in enumerate(node.items))
    inner = {step: pattern for step, child, names in children if (pattern := find_templates(child, later, names)) is not None}
    return Pattern(node, inner, ()) if inner else None


def _is_plain(node: Node) -> bool:
    """Return whether a node is a scalar without a template, which is true for most nodes."""
    return type(node) is ScalarNode and (type(node.value) is not str or "${" not in node.value)


class _Name(Struct, frozen=True):
    name: str
    default: str | None = None


_ENVIRONMENT = "env."
_VARIABLE = re.compile(r"env\.[^\s=${}:<>]+")
_MARKER = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")


@lru_cache(maxsize=1024)  # an output's templates are substituted for every group and target
def _parse_template(text: str) -> tuple[str | _Name, ...]:
    """Split `text` into unescaped literal parts and names."""
    return tuple(_split(text))


def _split(text: str) -> Iterator[str | _Name]:
    end = 0
    literal = ""
    for marker in _MARKER.finditer(text):
        literal += text[end : marker.start()]
        end = marker.end()
        if marker[0] == "$${":
            literal += "${"
        elif marker[1] is None:
            hint = "Add '}', or write '$${' for a literal '${'."
            raise TemplateError(f"unclosed '${{' in {quote_text(text)}", hint)
        else:
            if literal:
                yield literal
            literal = ""
            yield _parse_name(marker[1])
    literal += text[end:]
    if literal:
        yield literal


def _parse_name(inside: str) -> _Name:
    """Parse the text between the braces: a name, or an environment variable with a default."""
    name, has_default, default = inside.partition(":-")
    if not has_default:
        return _Name(inside)
    if not _VARIABLE.fullmatch(name):
        hint = "Only an environment variable can have a default: ${env.<NAME>:-default}."
        raise TemplateError(f"{quote_text('${' + inside + '}')} cannot have a default", hint)
    if "${" in default:
        message = f"the default in {quote_text('${' + inside + '}')} cannot contain a template"
        raise TemplateError(message, "Write a literal default.")
    return _Name(name, default)


def _get_value(piece: _Name, names: Mapping[str, Scalar], later: Collection[str] = ()) -> Scalar:
    name = piece.name
    value = names.get(name)
    if piece.default is not None and value in (None, ""):
        return piece.default
    if value is not None:
        return value
    if _VARIABLE.fullmatch(name):
        message = f"the environment variable {quote_text(name.removeprefix(_ENVIRONMENT))} is not set"
        raise TemplateError(message, f"Set it, or write a default: '${{{name}:-…}}'.", name)
    known = [*names, *later]
    allowed = f"Allowed here: {format_choices(known)}."
    close = suggest_nearest(name, known)
    message = f"{quote_text('${' + name + '}')} refers to an unknown name"
    raise TemplateError(message, f"{close} {allowed}" if close else allowed, name)


def escape(text: str) -> str:
    """Escape `${` in a text, so that the result contains no template."""
    return text.replace("${", "$${")


def _check_length(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise TemplateError(f"the text is longer than {MAX_TEXT:,} characters after substitution")
    return text
