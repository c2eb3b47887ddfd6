"""Loader and validator of users' catalog files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from epbuild.catalog.entries import EpEntry, read_entry
from epbuild.catalog.normalize import BadValue, normalize
from epbuild.core.errors import suggest_nearest
from epbuild.core.safepath import read_regular


class BadCatalog(ValueError):
    """Error for an invalid catalog file. `key` is a key path such as `options.speed.type`, or empty for the whole file."""

    def __init__(self, path: Path, key: str, message: str) -> None:
        super().__init__(f"{path.name}: {key}: {message}" if key else f"{path.name}: {message}")
        self.path = path
        self.key = key
        self.message = message


def load_catalog(path: Path) -> EpEntry:
    """Return the entry in a user's catalog file. Raises BadCatalog."""
    import tomllib

    try:
        document = tomllib.loads(read_regular(path).decode("utf-8"))
    except OSError as error:
        raise BadCatalog(path, "", f"the catalog file cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadCatalog(path, "", "the catalog file is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:  # also for an integer of thousands of digits
        raise BadCatalog(path, "", f"the catalog file is not TOML: {error}") from error
    try:
        problem = next(find_problems(document), None)
    except RecursionError as error:
        raise BadCatalog(path, "", "the tables of the catalog file are nested too deeply") from error
    if problem is not None:
        raise BadCatalog(path, *problem)
    return read_entry(document, user_file=path.name)


def find_problems(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key path and the message of each problem in a catalog document.

    Contradictions between values are reported only if the document conforms to the schema.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match
    from jsonschema.validators import extend

    from epbuild.core.canonical import read_schema

    for key, value in _find_integers(document):
        if not -(2**63) <= value < 2**63:  # TOML's range, which Python's TOML parser does not check
            yield key, "the integer needs more than 64 bits"
            return
    # JSON Schema accepts 1.0 as an integer, but TOML distinguishes them. TOML also has NaN, which would disable a threshold.
    types = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: type(value) is int,
            "number": lambda _, value: type(value) in (int, float) and math.isfinite(value),
        }
    )
    validator = extend(Draft202012Validator, type_checker=types)(read_schema("catalog"))  # type: ignore[no-untyped-call]
    errors = sorted(validator.iter_errors(document), key=lambda error: [str(part) for part in error.absolute_path])
    for error in errors:
        deepest = best_match([error]) or error
        yield ".".join(str(part) for part in deepest.absolute_path), _describe_error(deepest)
    if not errors:
        yield from _find_contradictions(document)


def _find_integers(value: Any, place: str = "") -> Iterator[tuple[str, int]]:
    """Yield the key path and the value of every integer."""
    if isinstance(value, int):
        yield place, value
    elif isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _find_integers(item, f"{place}.{name}" if place else str(name))


def _describe_error(error: Any) -> str:
    instance, expected, rule = error.instance, error.validator_value, error.schema
    if error.validator == "additionalProperties":
        allowed = list(rule["properties"])
        unknown = [name for name in instance if name not in allowed]
        hint = suggest_nearest(unknown[0], allowed)
        return f"unknown key '{unknown[0]}'" + (f". {hint}" if hint else f"; known keys: {', '.join(allowed)}")
    if error.validator == "required":
        return f"'{next(name for name in expected if name not in instance)}' is missing"
    if error.validator == "enum":
        hint = suggest_nearest(str(instance), map(str, expected))
        return f"{instance!r} is not one of {', '.join(map(str, expected))}" + (f". {hint}" if hint else "")
    if error.validator == "type":
        return f"{instance!r} is not {_ARTICLES.get(str(expected), expected)}"
    if error.validator == "pattern":
        what = rule.get("description")
        return (
            f"{instance!r} is not {what[0].lower()}{what[1:].rstrip('.')}" if what else f"{instance!r} does not match {expected}"
        )
    return str(error.message)


_ARTICLES = {
    "string": "a string",
    "boolean": "true or false",
    "array": "a list",
    "object": "a table",
    "integer": "a whole number",
    "number": "a number",
}


def _find_contradictions(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    options: Mapping[str, Any] = document.get("options", {})
    expression_problems = list(_check_expressions(document))
    yield from expression_problems
    unknown = [(place, name) for place, name in _find_named_options(document) if name not in options]
    for place, name in unknown:
        hint = suggest_nearest(name, options)
        yield place, f"there is no option '{name}'" + (f". {hint}" if hint else "")
    for name, row in options.items():
        yield from _check_option(f"options.{name}", row)
    for option, table in document.get("names", {}).items():
        yield from _check_spellings(f"names.{option}", table["rows"])
        if option in options and options[option]["type"] != "name":
            yield (
                f"names.{option}",
                f"the option '{option}' is of type '{options[option]['type']}'; only an option of type 'name' can have a table of names",
            )
    sharing = document.get("sharing", {"possible": True})
    if not sharing["possible"] and not sharing.get("reason"):
        yield "sharing", "'reason' is missing: state why weights cannot be shared"
    if not expression_problems and not unknown:  # an entry needs valid expressions and options
        yield from _check_defaults(document)


def _check_spellings(place: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    names: dict[str, str] = {}
    for number, row in enumerate(rows):
        for spelling in (row["name"], *row.get("spellings", ())):
            if spelling in names:
                yield f"{place}.rows.{number}", f"'{spelling}' is already a spelling of {names[spelling]}"
            names[spelling] = row["name"]


def _check_option(place: str, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kind = row["type"]
    for key, types in _KEY_TYPES.items():
        if key in row and kind not in types:
            yield f"{place}.{key}", f"'{key}' is not allowed for an option of type '{kind}'"
    if kind == "choice" and "values" not in row:
        yield place, "an option of type 'choice' requires the key 'values'"
    if kind == "pattern" and "pattern" not in row:
        yield place, "an option of type 'pattern' requires the key 'pattern'"
    if "pattern" in row and "example" not in row:
        yield place, "'pattern' requires an 'example', which messages quote"
    values = [value.lower() for value in row.get("values", ())]
    if len(set(values)) < len(values):
        yield f"{place}.values", "duplicate value; case is ignored"
    for word, meant in row.get("aliases", {}).items():
        if meant.lower() not in values:
            yield f"{place}.aliases.{word}", f"'{meant}' is not one of the option's 'values'"
    if row.get("minimum", 0) > row.get("maximum", row.get("minimum", 0)):
        yield f"{place}.minimum", f"{row['minimum']} is more than the maximum, {row['maximum']}"


_NUMBERS = {"integer", "number", "size"}
_KEY_TYPES = {
    "values": {"choice", "list"},
    "aliases": {"choice", "list"},
    "minimum": _NUMBERS,
    "maximum": _NUMBERS,
    "pattern": {"pattern", "list"},
    "example": {"pattern", "list", "text", "file", "name"},
    "inline": {"file"},
    "case": {"pattern"},
}
"""Option types that allow a key, by key."""


def _check_defaults(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    entry = read_entry(document)
    for name, option in entry.options.items():
        values = [("default", option.default)]
        if option.pattern:
            values += [("example", example) for example in (option.example or "").split(", ")]
        for word, value in values:
            if not value:
                continue
            try:
                canonical = normalize(option, value, booleans=entry.booleans, names=entry.canonical_names(name))
            except BadValue as error:
                yield f"options.{name}.{word}", str(error)
            else:
                if canonical != value:
                    yield f"options.{name}.{word}", f"'{value}' is not the EP's spelling; write '{canonical}'"


_NODE_LOG = {"refused": (), "node": ("operator", "node"), "reason": ("reason",), "more": ()}
"""Named groups that each regular expression of `node_log` must have."""
_OPTION_KEYS = ("names", "names.*.implies", "refuse.*.when", "reproducible.except.*.when")
"""Paths of tables whose keys are names of options."""
_OPTION_NAMES = (
    "refuse.*.absent",
    "refuse.*.needs",
    "sharing.refused_values.*.option",
    "quantized_io_option",
    "binary.target_option",
)
_EXPRESSIONS = (
    *(f"options.*.{word}" for word in ("pattern", "inline", "files_pattern", "compile_only")),
    "host.drivers.*.pattern",
    "host.drivers.*.provider",
    "cannot.*.when.*",
    "refuse.*.when.*",
    "sharing.refused_values.*.pattern",
    "reproducible.except.*.when.*",
    "cannot.*.symptom",
    "out_of_memory",
    "binary.target_pattern",
    "compatibility.pattern",
    *(f"node_log.{word}" for word in _NODE_LOG),
)


def _find_named_options(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key path and the name of every reference to an option."""
    for path in _OPTION_KEYS:
        for place, table in _find_matches(document, path):
            yield from ((f"{place}.{name}" if path.startswith("names") else place.removesuffix(".when"), name) for name in table)
    for path in _OPTION_NAMES:
        for place, named in _find_matches(document, path):
            for name in named if isinstance(named, list) else [named]:
                yield place.removesuffix(".absent").removesuffix(".needs"), name


def _find_matches(value: Any, path: str, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key path and the value of every match of `path`, where `*` is any key or index."""
    step, _, rest = path.partition(".")
    items = enumerate(value) if isinstance(value, list) else value.items()
    for name, item in items:
        if step in ("*", name):
            inner = f"{place}.{name}" if place else str(name)
            yield from _find_matches(item, rest, inner) if rest else [(inner, item)]


def _check_expressions(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for place, expression in (found for path in _EXPRESSIONS for found in _find_matches(document, path)):
        try:
            groups = re.compile(expression).groups
        except (re.error, OverflowError, RecursionError) as error:
            yield place, f"not a regular expression: {error}"
            continue
        if place == "binary.target_pattern" and not groups:
            yield place, "the expression needs a group for the target's name"
        if place.endswith(".files_pattern") and not groups:
            yield place, "the expression needs a group for the path"
        if place.startswith("node_log."):
            for name in _NODE_LOG[place.removeprefix("node_log.")]:
                if name not in re.compile(expression).groupindex:
                    yield place, f"the expression needs a group named '{name}'"
