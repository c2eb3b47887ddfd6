"""Validation of a recipe against its JSON Schema.

`jsonschema_rs` is fast (30 ms for 10,000 targets) and decides whether a part of a recipe is valid. `jsonschema` finds the
violations in an invalid part. It is imported only then, because its import takes longer than reading a small recipe.

A subschema may define its own message with keywords that editors also support: `errorMessage` for the whole subschema, and
`patternErrorMessage` for its pattern. A `not` with `required` keys rejects the last of these keys. `synonyms` lists alternative
names for enumeration values or for mapping keys, from other tools or from earlier drafts of the recipe language.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from epbuild.core.canonical import conforms, read_schema
from epbuild.core.errors import Problem, suggest_nearest
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
"""ValidationError of `jsonschema`. The class is not imported here, because the import is slow."""


class Violation(Struct, frozen=True):
    """Problem, and the path of the invalid value or of the missing or unknown key."""

    path: KeyPath
    problem: Problem


_SECTIONS = ("toolchains", "models", "targets", "groups", "outputs")
"""Sections that contain definitions."""


def validate_raw(path: KeyPath, node: Node) -> list[Violation]:
    """Return the violations in a top-level key, before templates are substituted.

    The empty path stands for the whole recipe, except its definitions.
    """
    return _convert_errors(_find_errors(node, path), node, path)


def validate(path: KeyPath, node: Node, *, unresolved: bool = False) -> list[Violation]:
    """Return the violations of the definition at `path`, or of its matrix, after templates have been substituted.

    Texts that still contain templates are not checked, because the planner substitutes these templates. If some templates are
    invalid, `unresolved` is set. Then, return no violations if a text with an invalid template violates the schema, because the value of
    this template may determine which other values are valid.
    """
    errors = _find_errors(node, (path[0], *path[2:]))
    if not errors or (unresolved and any(map(_has_template, errors))):
        return []
    sound = (error for error in errors if not _is_for_planner(error) and not _is_for_reader(error, node))
    return _convert_errors(sound, node, path)


def _find_errors(node: Node, part: KeyPath) -> list[SchemaError]:
    document = to_plain(node)
    return [] if conforms(document, _make_fast_validator(part)) else list(_make_validator(part).iter_errors(document))


@cache
def _make_validator(part: KeyPath) -> Any:
    """Return the slow validator, which finds every error in a part of a recipe."""
    document, found = _get_subschema(part)
    from jsonschema import Draft202012Validator  # imported here because it is slow and needed only for invalid recipes

    return Draft202012Validator({**_inline_references(found, document["$defs"]), "$defs": document["$defs"]})


@cache
def _make_fast_validator(part: KeyPath) -> Validator:
    """Return the fast validator, which only decides whether a part of a recipe is valid."""
    import jsonschema_rs

    document, found = _get_subschema(part)
    return jsonschema_rs.Draft202012Validator({**found, "$defs": document["$defs"]})


def _get_subschema(part: KeyPath) -> tuple[Any, Any]:
    """Return the whole schema and the subschema of a part. The empty part is the recipe without its definitions."""
    document = get_recipe_schema()
    found: Any = document
    if not part:
        shallow = {
            name: {key: value for key, value in section.items() if key != _get_definitions_keyword(section)}
            for name, section in document["properties"].items()
            if name in _SECTIONS
        }
        return document, {**document, "properties": {**document["properties"], **shallow}}
    for number, key in enumerate(part):
        while found.keys() == {"$ref"}:
            found = document["$defs"][found["$ref"].removeprefix("#/$defs/")]
        found = found["properties"][key]
        if number == 0 and key in _SECTIONS:
            found = found[_get_definitions_keyword(found)]
    return document, found


def _get_definitions_keyword(section: Mapping[str, Any]) -> str:
    """Return the schema keyword that contains the subschema of a section's definitions."""
    return "items" if section["type"] == "array" else "additionalProperties"


@cache
def get_recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipes. It must not be modified."""
    return read_schema("recipe")


def _inline_references(part: Any, definitions: dict[str, Any]) -> Any:
    """Return the schema with references replaced by their definitions, because resolving references is slow.

    No definition may be recursive.
    """
    if isinstance(part, list):
        return [_inline_references(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    if part.keys() == {"$ref"}:
        return _inline_references(definitions[part["$ref"].removeprefix("#/$defs/")], definitions)
    return {key: _inline_references(value, definitions) for key, value in part.items()}


def _has_template(error: SchemaError) -> bool:
    """Return whether an error concerns a value with a template. Keys cannot contain templates."""
    return isinstance(error.instance, str) and "${" in error.instance and "propertyNames" not in error.absolute_schema_path


def _is_for_planner(error: SchemaError) -> bool:
    """Return whether an error concerns a template that the planner substitutes later.

    Errors of types and enumerations are reported now, because only other texts may contain the planner's templates.
    """
    return _has_template(error) and error.validator not in ("type", "enum")


def _is_for_reader(error: SchemaError, root: Node) -> bool:
    """Return whether the value of a template violates a pattern that also allows templates.

    The reader of the value reports this error.
    """
    if error.validator != "pattern" or "\\$\\{" not in str(error.validator_value):
        return False
    node = locate(root, tuple(error.absolute_path))
    return isinstance(node, ScalarNode) and "${" in node.written


def _convert_errors(errors: Iterable[SchemaError], root: Node, path: KeyPath) -> list[Violation]:
    return list(dict.fromkeys(found for error in errors for found in _convert_error(error, root, path)))


def _convert_error(error: SchemaError, root: Node, above: KeyPath) -> Iterator[Violation]:
    """Convert an error of `jsonschema` to violations, and yield them. `above` is the path of `root` in the recipe."""
    node = locate(root, tuple(error.absolute_path))
    path: KeyPath = (*above, *error.absolute_path)
    if isinstance(error.instance, str) and isinstance(node, MappingNode):
        # Only errors of `propertyNames` have a key as their instance. The path of such an error is the path of the mapping.
        name_where = node.entries[error.instance].name_where
        message = error.schema.get("patternErrorMessage") or error.message
        yield Violation((*path, error.instance), Problem(BAD_NAME, message, name_where))
    elif error.validator == "additionalProperties" and isinstance(node, MappingNode):
        yield from _find_unknown_keys(error, path, node)
    elif error.validator == "required" and isinstance(node, MappingNode):
        for key in error.validator_value:
            if key not in node.entries:
                message = f"the key '{key}' is missing in {_format_path(path)}"
                yield Violation((*path, key), Problem(MISSING_KEY, message, node.where))
    elif error.validator == "not" and "required" in error.validator_value:
        excluded = error.validator_value["required"][-1]
        if isinstance(node, MappingNode):  # a node of another type causes a separate error
            yield Violation((*path, excluded), _make_problem(error, node.entries[excluded].node, path))
    else:
        yield Violation(path, _make_problem(error, node, path))


def _find_unknown_keys(error: SchemaError, path: KeyPath, node: MappingNode) -> Iterator[Violation]:
    known = list(error.schema["properties"])
    unused = [key for key in known if key not in node.entries]
    for key, entry in node.entries.items():
        if key not in known:
            synonym = error.schema.get("synonyms", {}).get(key)
            hint = f"Use '{synonym}' instead." if synonym else suggest_nearest(key, unused) or suggest_nearest(key, known)
            hint = hint or f"Allowed here: {format_choices(known)}."
            problem = Problem(UNKNOWN_KEY, f"unknown key {quote_text(key)} in {_format_path(path)}", entry.name_where, hint)
            yield Violation((*path, key), problem)


def _format_path(path: KeyPath) -> str:
    """Return a path in the form `outputs[0].path`."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return steps[1:] or "the recipe"


def _make_problem(error: SchemaError, node: Node, path: KeyPath) -> Problem:
    """Return the problem of an invalid value or a value of the wrong type."""
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
                WRONG_TYPE, f"expected one of {format_choices(map(render, limit))}, found {describe_type(node)}", node.where
            )
        case "pattern":
            code = BAD_NAME if path == ("name",) else WRONG_VALUE
            return Problem(code, error.schema.get("patternErrorMessage") or error.message, node.where)
        case "minItems" | "minProperties" | "minLength":
            return Problem(WRONG_VALUE, f"{_format_path(path)} must not be empty", node.where)
        case "minimum":
            return Problem(WRONG_VALUE, f"{_format_path(path)} must be at least {limit}", node.where)
        case "exclusiveMinimum":
            return Problem(WRONG_VALUE, f"{_format_path(path)} must be more than {limit}", node.where)
        case _:
            return Problem(WRONG_VALUE, error.message, node.where)
