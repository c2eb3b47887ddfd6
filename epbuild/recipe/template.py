"""Templates in texts: `${name}`, and `$${` for a literal `${`.

A template refers to a known name. It cannot contain an expression. A reference to an environment variable may have a default,
which is used if the variable is unset or empty: `${env.NAME:-default}`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

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
        if not name.startswith(_ENVIRONMENT):
            for values in self._values:
                if name in values:
                    return values[name]
            raise KeyError(name)
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
    return pieces[0] if len(pieces) == 1 else _check_length("".join(map(render, pieces)))


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


def resolve_templates(
    node: Node, names: Mapping[str, Scalar], later: Mapping[str, Collection[str]] | None = None
) -> tuple[Node, list[Problem]]:
    """Substitute the templates in the values of a node, but not in its keys. Return the new node and the problems.

    A node without templates is returned as the same object, so that all rows of a matrix share the node. `later` maps keys, at any
    depth, to the names that the planner substitutes later in the values of these keys.
    """
    problems: list[Problem] = []

    def walk(node: Node, kept: Collection[str]) -> Node:
        if isinstance(node, MappingNode):
            changed = {}
            for key, entry in node.entries.items():
                if _is_plain(entry.node):
                    continue
                inner = walk(entry.node, later.get(key, ()) if later else ())
                if inner is not entry.node:
                    changed[key] = KeyedNode(entry.name_where, inner)
            if not changed:
                return node
            return replace(node, entries={**node.entries, **changed})
        if isinstance(node, SequenceNode):
            items = tuple(walk(item, kept) for item in node.items)
            same = all(map(operator.is_, items, node.items))
            return node if same else replace(node, items=items)
        if _is_plain(node) or not isinstance(node.value, str):
            return node
        try:
            value = substitute_known(node.value, names, kept) if kept else substitute(node.value, names)
        except TemplateError as error:
            problems.append(error.problem(node.where))
            return node
        return replace(node, value=value)

    return walk(node, ()), problems


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
        raise TemplateError(
            f"{quote_text('${' + inside + '}')} cannot have a default",
            "Only an environment variable can have a default: ${env.<NAME>:-default}.",
        )
    if "${" in default:
        raise TemplateError(
            f"the default in {quote_text('${' + inside + '}')} cannot contain a template", "Write a literal default."
        )
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
