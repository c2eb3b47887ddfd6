"""JSON Schemas for editors. The recipe schema includes the options of every EP.

The schema never rejects what the catalog accepts. `epbuild validate` is stricter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from epbuild.catalog.catalog import entries_for, get_short_name, known_eps, list_session_keys
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.options import Option
from epbuild.catalog.preparations import PreparationOption, get_preparation, list_preparation_kinds
from epbuild.core.canonical import read_schema

SCHEMAS: Final = ("recipe", "manifest", "catalog", "report", "doctor")

_Schema = dict[str, Any]
_SCALAR: Final = ["string", "number", "boolean"]
_SUBSTITUTION: Final = r"\$\{"
_SWITCHES: Final = ("true", "false", "yes", "no", "on", "off", "1", "0")
_CONSTRAINTS = frozenset({
    "type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "patternErrorMessage", "errorMessage",
})  # fmt: skip
"""Keys of a subschema that constrain a value."""


def build_editor_schema(name: str) -> _Schema:
    """Return the schema `name`. The recipe schema includes the catalog. Raises FileNotFoundError for an unknown name."""
    document = read_schema(name)
    if name == "recipe":
        _add_catalog(document)
    return document


def _add_catalog(document: _Schema) -> None:
    definitions = document.setdefault("$defs", {})
    keys = list_session_keys()
    definitions["session-options"] = {"properties": _build_key_schemas(keys.options, keys.reserved)}
    definitions["run-options"] = {"properties": _build_key_schemas(keys.run_options, {})}
    for kind in list_preparation_kinds():
        definitions["preparation"]["properties"][kind]["properties"] = _build_preparation_schemas(get_preparation(kind).options)
    values: list[_Schema] = []
    names: list[_Schema] = []
    for ep in known_eps():
        ident = f"provider-options-{ep}"
        definitions[ident] = {"properties": _build_option_schemas(entries_for(ep))}
        properties = {"provider_options": {"$ref": f"#/$defs/{ident}"}}
        condition = {"properties": {"ep": {"enum": [ep, get_short_name(ep)]}}, "required": ["ep"]}
        message = f"unknown option of {ep}; set `allow_unknown_options: true` in the target to pass it unchecked"
        known = {"propertyNames": {"enum": list(definitions[ident]["properties"]), "errorMessage": message}}
        names.append({"if": condition, "then": {"properties": {"provider_options": known}}})
        for key, accepted in _build_short_keys(entries_for(ep)).items():
            definitions[f"{key}-{ep}"] = accepted
            properties[key] = {"$ref": f"#/$defs/{key}-{ep}"}
        values.append({"if": condition, "then": {"properties": properties}})
    for found in definitions.values():
        _allow_variables(found)
    for found in list(_find_mappings(document)):
        properties = found["properties"]
        for key, ident in (("session_options", "session-options"), ("run_options", "run-options")):
            if key in properties:
                properties[key].setdefault("allOf", []).append({"$ref": f"#/$defs/{ident}"})
        if "provider_options" in properties and "ep" in properties:
            properties["ep"].setdefault("anyOf", [_build_ep_schema(), {"type": "string"}])
    definitions["option-values"], definitions["option-names"] = {"allOf": values}, {"allOf": names}
    definitions["target"]["allOf"].append(_build_target_rule("option-values"))
    # A catalog file may describe another packaging of a known EP, with other options.
    rule = {"properties": {"targets": {"additionalProperties": _build_target_rule("option-names")}}}
    document.setdefault("allOf", []).append({"if": {"not": {"required": ["catalogs"]}}, "then": rule})


def _build_ep_schema() -> _Schema:
    """Return the schema of EP names with their descriptions. Short names come first."""
    described = {ep: entries_for(ep)[0].description for ep in known_eps()}
    return {
        "enum": [*map(get_short_name, described), *described],
        "enumDescriptions": [*described.values(), *described.values()],
    }


def _build_short_keys(entries: Iterable[EpEntry]) -> dict[str, _Schema]:
    """Return the schemas of target keys that are short for an option of an EP, by key. They propose the option's known values."""
    found = {}
    for entry in entries:
        start = entry.start
        if start is None or start.key is None or start.option is None:
            continue
        examples = dict.fromkeys((entry.options[start.option].example or start.example).split(", "), "")
        value = _propose_values(_list_known_names(entry, start.option) or examples)
        found[start.key] = {"anyOf": [*value["anyOf"], {"type": "array", "items": value}, {"type": "object"}]}
    return found


def _list_known_names(entry: EpEntry, option: str) -> dict[str, str]:
    """Return the names that an option accepts, with descriptions. Names with products are first, and the products are last."""
    rows = sorted(entry.names[option].rows if option in entry.names else (), key=lambda row: not row.products)
    names = {row.name: ", ".join(row.products) for row in rows}
    return names | {product: row.name for row in rows for product in row.products}


def _propose_values(described: Mapping[Any, str]) -> _Schema:
    """Return the schema of a scalar for which editors propose values with their descriptions."""
    return {"anyOf": [{"enum": list(described), "enumDescriptions": list(described.values())}, {"type": _SCALAR}]}


def _allow_variables(definition: _Schema) -> None:
    """Allow `${...}` in place of every non-string value of a definition. epbuild checks the value after substitution."""
    values = [*definition.get("properties", {}).values(), definition.get("additionalProperties"), definition]
    for value in values:
        if not isinstance(value, dict):
            continue
        if value is not definition:
            _allow_variables(value)
        if value.get("type") in ("boolean", "integer", "number") or (
            "title" in value and ("enum" in value or "pattern" in value)
        ):
            judged = {key: value.pop(key) for key in list(value) if key in _CONSTRAINTS}
            value["anyOf"] = [judged, {"type": "string", "pattern": _SUBSTITUTION}]


def _build_target_rule(definition: str) -> _Schema:
    """Return a rule that applies a definition to each EP of a target, unless the target allows unknown options."""
    allows = {"properties": {"allow_unknown_options": {"const": True}}, "required": ["allow_unknown_options"]}
    rule = {"$ref": f"#/$defs/{definition}"}
    return {"if": {"not": allows}, "then": {"allOf": [rule], "properties": {"eps": {"items": rule}}}}


def _find_mappings(node: Any) -> Iterator[_Schema]:
    """Yield every subschema of a document that describes a mapping."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield node
        for child in node.values():
            yield from _find_mappings(child)
    elif isinstance(node, list):
        for child in node:
            yield from _find_mappings(child)


def _build_option_schemas(entries: Iterable[EpEntry]) -> dict[str, _Schema]:
    """Return the schemas of an EP's options by name. `entries` are all catalog entries of the EP."""
    found: dict[str, list[_Schema]] = {}
    for entry in entries:
        for name, option in entry.options.items():
            described = _build_option_schema(option, _list_known_names(entry, name))
            if described not in found.setdefault(name, []):
                found[name].append(described)
    return {name: _combine_schemas(schemas) for name, schemas in sorted(found.items())}


def _combine_schemas(schemas: list[_Schema]) -> _Schema:
    if len(schemas) == 1:
        return schemas[0]
    meanings = dict.fromkeys(one["description"] for one in schemas)
    values = [{key: value for key, value in one.items() if key != "description"} for one in schemas]
    return {"description": "\n\n".join(meanings), "anyOf": values}


def _build_key_schemas(options: Mapping[str, Option], kept: Mapping[str, str]) -> dict[str, _Schema]:
    """Return the schemas of ONNX Runtime's session keys or run options. Recipes cannot set the keys in `kept`."""
    free = {name: _build_option_schema(option, {}) for name, option in options.items()}
    texts = {name: f"Recipes cannot set this key: {instead}." for name, instead in kept.items()}
    reserved = {
        name: {"description": text, "not": {}, "errorMessage": text, "doNotSuggest": True} for name, text in texts.items()
    }
    return dict(sorted({**reserved, **free}.items()))


def _build_preparation_schemas(options: Mapping[str, PreparationOption]) -> dict[str, _Schema]:
    """Return schemas with which editors complete and describe options. The catalog, not the schema, checks the values."""
    return {name: _build_preparation_schema(option) for name, option in options.items()}


def _build_preparation_schema(option: PreparationOption) -> _Schema:
    default = "" if option.default is None else f" Default: {str(option.default).lower()}."
    found: _Schema = {"description": f"{option.meaning.removesuffix('.')}.{default}"}
    if option.options:
        found["properties"] = _build_preparation_schemas(option.options)
    proposed = [True, False] if option.type == "boolean" else [*option.values]
    if proposed:
        several = (
            [{"type": "array", "items": {"anyOf": [{"enum": proposed}, {"type": _SCALAR}]}}] if option.type == "names" else []
        )
        found["anyOf"] = [*several, {"enum": proposed}, {}]
    return found


def _build_option_schema(option: Option, names: Mapping[str, str]) -> _Schema:
    return {"description": " ".join(_format_sentences(option)), **_build_value_schema(option, names)}


def _format_sentences(option: Option) -> Iterator[str]:
    yield option.meaning if option.meaning.endswith(".") else f"{option.meaning}."
    if option.values and option.type == "list":
        yield f"A list of these values: {', '.join(option.values)}."
    default = format_default(option) if option.default is not None else None
    facts = {"Default:": default, "Example:": option.example, "Since": option.since, "Until": option.until}
    yield from (f"{label} {value}." for label, value in facts.items() if value is not None)


def format_default(option: Option) -> str:
    """Return the default of an option as written in a recipe."""
    text = option.default or ""
    if option.type == "boolean":
        return "true" if text.lower() in {"1", "true"} else "false"
    return text or '""'


def _build_value_schema(option: Option, names: Mapping[str, str]) -> _Schema:
    """Return the schema of an option's values, with accepted and proposed values. Every value may be `${...}`."""
    match option.type:
        case "boolean":
            return {"anyOf": [{"type": "boolean"}, {"enum": [0, 1]}, _build_word_schema(_SWITCHES)]}
        case "choice":
            return {"anyOf": [{"enum": [_parse_scalar(value) for value in option.values]}, _build_word_schema(option.values)]}
        case "integer" | "number" | "size":
            number: _Schema = {"type": "number" if option.type == "number" else "integer"}
            if option.minimum is not None:
                number["minimum"] = _simplify_number(option.minimum)
            if option.maximum is not None:
                number["maximum"] = _simplify_number(option.maximum)
            return {"anyOf": [number, {"type": "string"}]}
        case _:
            if names:
                return _propose_values(names)
            proposed = [_parse_scalar(value) for value in option.values]
            return {"anyOf": [{"enum": proposed}, {"type": _SCALAR}]} if proposed else {"type": _SCALAR}


def _build_word_schema(words: Iterable[str]) -> _Schema:
    """Return the schema of a string that equals one of the words in any case, or that contains `${...}`."""
    return {"type": "string", "pattern": f"^\\s*({'|'.join(map(_match_any_case, words))})\\s*$|{_SUBSTITUTION}"}


def _match_any_case(word: str) -> str:
    """Return a pattern that matches a word in any case, because patterns in JSON Schema have no flags."""
    letters = (f"[{letter.upper()}{letter.lower()}]" if letter.upper() != letter.lower() else letter for letter in word)
    return "".join(f"\\{letter}" if letter in r".^$*+?()[]{}|\/" else letter for letter in letters)


def _parse_scalar(value: str) -> str | int | bool:
    """Return the value that YAML would read if `value` were written without quotes."""
    if value in {"true", "false"}:
        return value == "true"
    return int(value) if value.isdecimal() and str(int(value)) == value else value


def _simplify_number(number: float) -> float | int:
    return int(number) if float(number).is_integer() else number
