"""Validation of a recipe by its JSON Schema.

`jsonschema_rs` decides whether a part of a recipe conforms: 10,000 targets take 30 ms. `jsonschema` finds the violations. Its import
takes longer than reading a small recipe.

A subschema may have its own message, in keywords that editors know too: `errorMessage` for the whole subschema, `patternErrorMessage`
for its pattern. A `not` that requires keys refuses the last of them. `synonyms` has other names for the values of an enumeration, or
for the keys of a mapping: those of other tools, or of earlier drafts of the language.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from epbuild.core.errors import Problem, suggest_nearest
from epbuild.core.schemas import read_schema
from epbuild.recipe.nodes import KeyPath, MappingNode, Node, ScalarNode, locate, render, to_plain
from epbuild.recipe.problems import (
    BAD_NAME,
    MISSING_KEY,
    UNKNOWN_KEY,
    WRONG_TYPE,
    WRONG_VALUE,
    describe_type,
    format_choices,
    make_type_problem,
    quote_text,
)

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator as Validator

SchemaError = Any
"""A ValidationError of jsonschema, which takes too long to import."""


class Violation(Struct, frozen=True):
    """Problem, and the path of the unusable value, or of the missing or unknown key."""

    path: KeyPath
    problem: Problem


_SECTIONS = ("toolchains", "models", "targets", "groups", "outputs")
"""Sections of definitions."""


def judge_sections(root: MappingNode) -> list[Violation]:
    """Return the violations of a recipe, except those in the definitions of its sections."""
    document = to_plain(root)
    if _conforms(document, ()):
        return []
    errors = _validator(()).iter_errors(document)
    return list(dict.fromkeys(found for error in errors for found in _translated(error, root, ())))


def judge(path: KeyPath, node: Node, *, unresolved: bool = False) -> list[Violation]:
    """Return the violations of the definition at `path`, or of its matrix, whose templates have been substituted.

    A text that still holds a template is left to the planner. In an `unresolved` definition such a text is a problem of its own. If it
    violates the schema there, no other violation is returned, since one value may decide what the others have to be.
    """
    part = (path[0], *path[2:])
    document = to_plain(node)
    if _conforms(document, part):
        return []
    errors = list(_validator(part).iter_errors(document))
    if unresolved and any(map(_has_template, errors)):
        return []
    sound = (error for error in errors if not _is_left_to_planner(error) and not _is_left_to_readers(error, node))
    return list(dict.fromkeys(found for error in sound for found in _translated(error, node, path)))


def judge_key(key: str, node: Node) -> list[Violation]:
    """Return the violations of a key of a recipe that is read before any template is substituted."""
    document = to_plain(node)
    if _conforms(document, (key,)):
        return []
    return [found for error in _validator((key,)).iter_errors(document) for found in _translated(error, node, (key,))]


@cache
def _validator(part: KeyPath) -> Any:
    """Return the validator that finds every error in a part of a recipe."""
    document, found = _schema_of(part)
    from jsonschema import Draft202012Validator  # it only explains mistakes, and takes long to import

    return Draft202012Validator({**_written_out(found, document["$defs"]), "$defs": document["$defs"]})


def _conforms(document: object, part: KeyPath) -> bool:
    """Return whether a part of a recipe certainly conforms to the schema. False may also mean that this is unknown."""
    try:
        return _fast_validator(part).is_valid(document)
    except UnicodeEncodeError:  # a surrogate, which a variable of the environment may hold
        return False


@cache
def _fast_validator(part: KeyPath) -> Validator:
    """Return the validator that decides whether a part of a recipe conforms."""
    import jsonschema_rs

    document, found = _schema_of(part)
    return jsonschema_rs.Draft202012Validator({**found, "$defs": document["$defs"]})


def _schema_of(part: KeyPath) -> tuple[Any, Any]:
    """Return the schema's document, and its part for a recipe without its definitions, for one definition, or for a key."""
    document = _recipe_schema()
    found: Any = document
    if not part:
        shallow = {
            name: {key: value for key, value in section.items() if key != _definitions(section)}
            for name, section in document["properties"].items()
            if name in _SECTIONS
        }
        return document, {**document, "properties": {**document["properties"], **shallow}}
    for number, key in enumerate(part):
        while found.keys() == {"$ref"}:
            found = document["$defs"][found["$ref"].removeprefix("#/$defs/")]
        found = found["properties"][key]
        if number == 0 and key in _SECTIONS:
            found = found[_definitions(found)]
    return document, found


def _definitions(section: Mapping[str, Any]) -> str:
    """Return the keyword that has the schema of a section's definitions."""
    return "items" if section["type"] == "array" else "additionalProperties"


@cache
def _recipe_schema() -> dict[str, Any]:
    return read_schema("recipe")


def _written_out(part: Any, definitions: dict[str, Any]) -> Any:
    """Return the schema with its references replaced by definitions, as following a reference is slow. No definition is recursive."""
    if isinstance(part, list):
        return [_written_out(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    if part.keys() == {"$ref"}:
        return _written_out(definitions[part["$ref"].removeprefix("#/$defs/")], definitions)
    return {key: _written_out(value, definitions) for key, value in part.items()}


def _has_template(error: SchemaError) -> bool:
    """Return whether an error is about a value that holds a template. Keys hold none."""
    return isinstance(error.instance, str) and "${" in error.instance and "propertyNames" not in error.absolute_schema_path


def _is_left_to_planner(error: SchemaError) -> bool:
    """Return whether an error is about a text whose template the planner substitutes. It must be a text, and no word of an enum."""
    return _has_template(error) and error.validator not in ("type", "enum")


def _is_left_to_readers(error: SchemaError, root: Node) -> bool:
    """Return whether a text violates a pattern for texts with templates, and is the value of a template. Its reader reports the problem."""
    if error.validator != "pattern" or "\\$\\{" not in str(error.validator_value):
        return False
    node = locate(root, tuple(error.absolute_path))
    return isinstance(node, ScalarNode) and "${" in node.written


def _translated(error: SchemaError, root: Node, above: KeyPath) -> Iterator[Violation]:
    """Yield the violations of an error in `root`. `above` is the path of `root` in the recipe."""
    node = locate(root, tuple(error.absolute_path))
    path: KeyPath = (*above, *error.absolute_path)
    if isinstance(error.instance, str) and isinstance(node, MappingNode):
        # Only `propertyNames` has a key as the instance, and the path of its mapping.
        name_where = node.entries[error.instance].name_where
        message = error.schema.get("patternErrorMessage") or error.message
        yield Violation((*path, error.instance), Problem(BAD_NAME, message, name_where))
    elif error.validator == "additionalProperties" and isinstance(node, MappingNode):
        yield from _unknown_keys(error, path, node)
    elif error.validator == "required" and isinstance(node, MappingNode):
        for key in error.validator_value:
            if key not in node.entries:
                message = f"the key '{key}' is missing in {_dotted(path)}"
                yield Violation((*path, key), Problem(MISSING_KEY, message, node.where))
    elif error.validator == "not" and "required" in error.validator_value:
        excluded = error.validator_value["required"][-1]
        if isinstance(node, MappingNode):  # another value is of the wrong type, which is an error of its own
            yield Violation((*path, excluded), _wrong(error, node.entries[excluded].node, path))
    else:
        yield Violation(path, _wrong(error, node, path))


def _unknown_keys(error: SchemaError, path: KeyPath, node: MappingNode) -> Iterator[Violation]:
    known = list(error.schema["properties"])
    unused = [key for key in known if key not in node.entries]
    for key, entry in node.entries.items():
        if key not in known:
            synonym = error.schema.get("synonyms", {}).get(key)
            hint = f"Use '{synonym}' instead." if synonym else suggest_nearest(key, unused) or suggest_nearest(key, known)
            hint = hint or f"Allowed here: {format_choices(known)}."
            problem = Problem(UNKNOWN_KEY, f"unknown key {quote_text(key)} in {_dotted(path)}", entry.name_where, hint)
            yield Violation((*path, key), problem)


def _dotted(path: KeyPath) -> str:
    """Return a path in the form `outputs[0].path`."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return steps[1:] or "the recipe"


def _wrong(error: SchemaError, node: Node, path: KeyPath) -> Problem:
    """Return the problem of a value of the wrong type, or with a value that is not allowed."""
    limit = error.validator_value
    if message := error.schema.get("errorMessage"):
        return Problem(WRONG_VALUE, message, node.where)
    match error.validator:
        case "type":
            return make_type_problem(node, limit)
        case "enum" if isinstance(node, ScalarNode) and isinstance(node.value, str):
            words = list(map(render, limit))
            message = f"invalid value {quote_text(node.value)}: expected one of {format_choices(words)}"
            synonym = error.schema.get("synonyms", {}).get(node.value.casefold())
            hint = f"Use '{synonym}' instead." if synonym else suggest_nearest(node.value, words)
            return Problem(WRONG_VALUE, message, node.where, hint)
        case "enum":
            return Problem(
                WRONG_TYPE, f"expected one of {format_choices(map(render, limit))}; found {describe_type(node)}", node.where
            )
        case "pattern":
            code = BAD_NAME if path == ("name",) else WRONG_VALUE
            return Problem(code, error.schema.get("patternErrorMessage") or error.message, node.where)
        case "minItems" | "minProperties" | "minLength":
            return Problem(WRONG_VALUE, "must not be empty", node.where)
        case "minimum":
            return Problem(WRONG_VALUE, f"must be at least {limit}", node.where)
        case "exclusiveMinimum":
            return Problem(WRONG_VALUE, f"must be more than {limit}", node.where)
        case _:
            return Problem(WRONG_VALUE, error.message, node.where)
