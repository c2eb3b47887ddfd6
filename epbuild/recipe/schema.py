"""The recipe held against its JSON Schema: every violation as a problem, in plain words, at the exact place.

Where the schema's own keywords say too little, a subschema says it itself, in the keywords that editors know too: `errorMessage`
for the whole subschema, `patternErrorMessage` for its pattern; `synonyms` has what others call the values of an enumeration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from epbuild.core.errors import Position, Problem, nearest
from epbuild.core.schemas import import_jsonschema, schema
from epbuild.recipe.problems import BAD_NAME, MISSING_KEY, UNKNOWN_KEY, WRONG_TYPE, WRONG_VALUE, one_of, quoted
from epbuild.recipe.source import KeyPath, MappingNode, Node, ScalarNode, SequenceNode, locate, plain
from epbuild.recipe.template import render

if TYPE_CHECKING:
    from jsonschema import ValidationError


@dataclass(frozen=True)
class Violation:
    """A problem, and the path of what it makes unusable: the value itself, or the key that is missing or unknown."""

    path: KeyPath
    problem: Problem


@dataclass(frozen=True)
class Verdict:
    """What the schema finds wrong with a recipe's text, in its order; and the definitions that it cannot judge before templates are
    substituted, as a template stands there where it asks for more than a text.
    """

    violations: tuple[Violation, ...] = ()
    pending: frozenset[KeyPath] = frozenset()


_SUBSTITUTED = frozenset({"toolchains", "models", "targets", "groups", "outputs"})
"""The sections whose definitions have templates."""


def judge(root: MappingNode) -> Verdict:
    """Hold a whole recipe against the schema, with the templates in its texts as they are written."""
    found: dict[Violation, None] = {}
    pending = set()
    for error in _validator(()).iter_errors(plain(root)):
        path: KeyPath = tuple(error.absolute_path)
        if _has_template(error) and path[0] in _SUBSTITUTED:
            pending.add(path[:2])
        else:
            found.update(dict.fromkeys(_translated(error, root)))
    # One value decides what is asked of others: of such a definition nothing is said before all of it is known.
    certain = (violation for violation in found if violation.path[:2] not in pending)
    return Verdict(tuple(sorted(certain, key=lambda violation: _place(violation.problem))), frozenset(pending))


def judge_definition(path: KeyPath, node: Node) -> list[Problem]:
    """What the schema finds wrong with the definition at `path`, whose templates have been substituted.

    A text that still has one is for the planner, and not judged here.
    """
    return list(
        dict.fromkeys(
            violation.problem
            for error in _validator((path[0],)).iter_errors(plain(node))
            if not _has_template(error)
            for violation in _translated(error, node, path)
        )
    )


@cache
def _validator(section: KeyPath) -> Any:
    """A validator of a whole recipe, or of one definition in a section of it."""
    document = schema("recipe")
    part: Any = document
    for name in section:
        part = document["properties"][name]
        part = part["items"] if part["type"] == "array" else part["additionalProperties"]
    # jsonschema takes longer to import than a whole build with nothing to do.
    return import_jsonschema().Draft202012Validator({**_written_out(part, document["$defs"]), "$defs": document["$defs"]})


def _has_template(error: ValidationError) -> bool:
    """Whether an error is about a value that holds a template; keys have none."""
    return isinstance(error.instance, str) and "${" in error.instance and "propertyNames" not in error.absolute_schema_path


def _written_out(part: Any, definitions: dict[str, Any]) -> Any:
    """The schema with definitions in the place of their references, which no definition has to itself: following one takes long."""
    if isinstance(part, list):
        return [_written_out(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    if part.keys() == {"$ref"}:
        return _written_out(definitions[part["$ref"].removeprefix("#/$defs/")], definitions)
    return {key: _written_out(value, definitions) for key, value in part.items()}


def wrong_type(node: Node, types: str | list[str]) -> Problem:
    """The problem of a value that is none of the JSON Schema `types`."""
    expected = [types] if isinstance(types, str) else types
    *most, last = [_EXPECTED[name] for name in expected]
    words = f"{', '.join(most)} or {last}" if most else last
    hint = None
    if isinstance(node, ScalarNode) and "string" in expected and not node.written.startswith("${"):
        hint = f'In quotes it is a string: "{node.written}".' if node.value is not None else None
    return Problem(WRONG_TYPE, f"{_actual(node)}; write {words}.", node.where, hint)


_EXPECTED = {
    "string": "a string",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}


def _actual(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "This is a mapping"
    if isinstance(node, SequenceNode):
        return "This is a list"
    if node.value is None:
        return "There is no value here"
    if node.written.startswith("${") and node.value != node.written:
        return f"{quoted(node.written)} is {quoted(render(node.value))} here"
    if isinstance(node.value, str):
        return f"{quoted(node.written)} is a string here"
    if isinstance(node.value, bool):
        return f"{quoted(node.written)} is a boolean here"
    return f"{quoted(node.written)} is a number here"


def _place(problem: Problem) -> Position:
    if not isinstance(problem.where, Position):
        raise TypeError(problem)
    return problem.where


def _translated(error: ValidationError, root: Node, above: KeyPath = ()) -> Iterator[Violation]:
    """The violations that an error found in `root` stands for; `above` is the path of `root` in the recipe."""
    node = locate(root, tuple(error.absolute_path))
    path: KeyPath = (*above, *error.absolute_path)
    if isinstance(error.instance, str) and isinstance(node, MappingNode):
        # Only `propertyNames` takes a key for the instance, and leaves the path at its mapping.
        name_where = node.entries[error.instance].name_where
        message = _says(error, "patternErrorMessage") or error.message
        yield Violation((*path, error.instance), Problem(BAD_NAME, message, name_where))
    elif error.validator == "additionalProperties" and isinstance(node, MappingNode):
        yield from _unknown_keys(error, path, node)
    elif error.validator == "required" and isinstance(node, MappingNode):
        required: Any = error.validator_value
        for key in required:
            if key not in node.entries:
                message = f"The key '{key}' is missing in {_dotted(path)}."
                yield Violation((*path, key), Problem(MISSING_KEY, message, node.where))
    else:
        yield Violation(path, _wrong(error, node, path))


def _unknown_keys(error: ValidationError, path: KeyPath, node: MappingNode) -> Iterator[Violation]:
    subschema: Any = error.schema
    known = list(subschema["properties"])
    unused = [key for key in known if key not in node.entries]
    for key, entry in node.entries.items():
        if key not in known:
            hint = nearest(key, unused) or nearest(key, known) or f"Allowed here: {one_of(known)}."
            problem = Problem(UNKNOWN_KEY, f"{quoted(key)} is not a key of {_dotted(path)}.", entry.name_where, hint)
            yield Violation((*path, key), problem)


def _says(error: ValidationError, keyword: str) -> str | None:
    """What the violated subschema has to say itself, if anything."""
    subschema: Any = error.schema
    message: str | None = subschema.get(keyword)
    return message


def _synonyms(error: ValidationError) -> Mapping[str, str]:
    """What values of the violated enumeration are called elsewhere, in small letters."""
    subschema: Any = error.schema
    found: Mapping[str, str] = subschema.get("synonyms", {})
    return found


def _dotted(path: KeyPath) -> str:
    """The path as people write it: `outputs[0].path`."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return steps[1:] or "the recipe"


def _wrong(error: ValidationError, node: Node, path: KeyPath) -> Problem:
    """The problem of a value that is of the wrong type, or of the right type and still not allowed."""
    limit: Any = error.validator_value
    if message := _says(error, "errorMessage"):
        return Problem(WRONG_VALUE, message, node.where)
    match error.validator:
        case "type":
            return wrong_type(node, limit)
        case "enum" if isinstance(node, ScalarNode) and isinstance(node.value, str):
            message = f"{quoted(node.value)} is not allowed here; write one of: {one_of(limit)}."
            synonym = _synonyms(error).get(node.value.casefold())
            hint = f"Here it is called '{synonym}'." if synonym else nearest(node.value, limit)
            return Problem(WRONG_VALUE, message, node.where, hint)
        case "enum":
            return Problem(WRONG_TYPE, f"{_actual(node)}; write one of: {one_of(limit)}.", node.where)
        case "pattern":
            code = BAD_NAME if path == ("name",) else WRONG_VALUE
            return Problem(code, _says(error, "patternErrorMessage") or error.message, node.where)
        case "minItems" | "minProperties" | "minLength":
            return Problem(WRONG_VALUE, "This must not be empty.", node.where)
        case "minimum":
            return Problem(WRONG_VALUE, f"This must be at least {limit}.", node.where)
        case "exclusiveMinimum":
            return Problem(WRONG_VALUE, f"This must be more than {limit}.", node.where)
        case _:
            return Problem(WRONG_VALUE, f"{error.message}.", node.where)
