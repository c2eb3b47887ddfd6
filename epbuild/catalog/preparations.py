"""Kinds of built-in preparations, and validation of their options.

check_options(get_preparation("opset"), 21)                         returns {"target_version": 21} and no fault
check_options(get_preparation("opset"), {"target_version": "new"})  returns {} and a fault at ("target_version",)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from epbuild.core.errors import suggest_nearest
from epbuild.core.records import convert

PreparationOptionType = Literal[
    "boolean", "integer", "integers", "number", "choice", "names", "groups", "flag-or-names", "files", "ranges", "sizes", "table"
]
OptionPath = tuple[str | int, ...]
"""Path to a value in a preparation's options, made of mapping keys and list indices."""

_DATA = Path(__file__).with_name("preparations.toml")


class PreparationOption(Struct, frozen=True):
    """Option of a built-in preparation."""

    name: str
    type: PreparationOptionType
    meaning: str
    values: tuple[str, ...] = ()
    minimum: int | float | None = None
    maximum: int | float | None = None
    default: str | int | float | bool | None = None
    """Value if the recipe does not set the option. None means the library's default."""
    required: bool = False
    requires: str | None = None
    """Another option, which must be true for this option to have an effect."""
    packages: tuple[str, ...] = ()
    """Distributions that the toolchain needs if the option is set and not false."""
    suffix: str | None = None
    """Required suffix of file names."""
    options: Mapping[str, PreparationOption] = field(default_factory=dict)
    """Nested options, if the type is `table`."""


class PreparationEntry(Struct, frozen=True):
    """Kind of built-in preparation."""

    kind: str
    summary: str
    packages: tuple[str, ...]
    """Distributions that the step's toolchain needs."""
    options: Mapping[str, PreparationOption]
    origin: str
    memory_per_byte: float
    """Bytes of memory for each byte of the model, in addition to the memory of a process without a model."""
    short: str | None = None
    """Option to set if the recipe has a single value in place of a mapping of options."""
    one_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    keeps_inputs: bool = False
    """True if the result has the inputs of the source, with the same fixed and open sizes."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings that the preparation's script gets in addition to the options."""

    @property
    def files(self) -> tuple[str, ...]:
        """Options whose values are files. The script gets the files separately."""
        return tuple(option.name for option in self.options.values() if option.type == "files")

    def list_packages_for(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the distributions that a step with these options needs."""
        more = (name for option, value in options.items() if value is not False for name in self.options[option].packages)
        return tuple(dict.fromkeys((*self.packages, *more)))


class OptionFault(Struct, frozen=True):
    """Fault in a preparation's options. `is_in_name` means that the option's name is wrong, and not its value."""

    path: OptionPath
    message: str
    hint: str | None = None
    is_in_name: bool = False


def list_preparation_kinds() -> tuple[str, ...]:
    return tuple(_load_entries())


def get_preparation(kind: str) -> PreparationEntry:
    """Return the entry of a kind. Raises KeyError for an unknown kind."""
    return _load_entries()[kind]


def check_options(kind: PreparationEntry, given: object) -> tuple[dict[str, Any], list[OptionFault]]:
    """Return the valid options of a preparation, with defaults added, and the faults of the invalid options.

    `given` is the recipe's value for the kind: a mapping of options, a value for the option `short`, or None.
    """
    if kind.short is not None and not isinstance(given, Mapping | list) and given is not None:
        faults = list(_check_option(kind.options[kind.short], given, ()))
        return ({} if faults else {kind.short: given}), faults
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        return {}, [OptionFault((), f"the options of '{kind.kind}' must be a mapping", _suggest(kind.options))]
    faults = list(_check_table(kind.options, given, (), f"'{kind.kind}'"))
    faults += _check_combinations(kind, given)
    wrong = {fault.path[0] for fault in faults if fault.path}
    return {name: _complete(kind.options[name], value) for name, value in given.items() if name not in wrong}, faults


def _complete(option: PreparationOption, value: Any) -> Any:
    """Return an option's value with the defaults of a table added, with whole numbers as integers, and with groups as lists.

    The action key contains the defaults, so that a release with other defaults cannot silently change a result.
    """
    if option.type == "table":
        defaults = {name: inner.default for name, inner in option.options.items() if inner.default is not None}
        return {**defaults, **value}
    if option.type == "groups":
        return [[item] if isinstance(item, str) else item for item in value]
    if option.type == "integers":
        return [int(item) for item in value]
    if option.type == "sizes":
        return {name: [int(size) for size in sizes] for name, sizes in value.items()}
    return int(value) if option.type == "integer" else value


def _check_combinations(kind: PreparationEntry, given: Mapping[str, Any]) -> Iterable[OptionFault]:
    alternatives = [name for name in kind.one_of if name in given]
    names = " or ".join(f"'{name}'" for name in kind.one_of or kind.any_of)
    if kind.one_of and not alternatives:
        yield OptionFault((), f"'{kind.kind}' requires {names}", _format_meanings(kind, kind.one_of))
    if len(alternatives) > 1:
        yield OptionFault((alternatives[1],), f"'{kind.kind}' accepts only one of {names}", None, is_in_name=True)
    if kind.any_of and not any(name in given for name in kind.any_of):
        yield OptionFault((), f"'{kind.kind}' requires {names}", _format_meanings(kind, kind.any_of))
    for name in given:
        needed = kind.options[name].requires if name in kind.options else None
        if needed is not None and given.get(needed) is not True:
            message = f"'{name}' requires '{needed}: true'"
            yield OptionFault((name,), message, f"Add '{needed}: true', or remove '{name}'.", is_in_name=True)


def _format_meanings(kind: PreparationEntry, names: Iterable[str]) -> str:
    return " ".join(f"{name}: {kind.options[name].meaning}" for name in names)


def _check_table(
    options: Mapping[str, PreparationOption], given: Mapping[str, Any], path: OptionPath, whose: str
) -> Iterable[OptionFault]:
    for name, value in given.items():
        if name not in options:
            yield OptionFault((*path, name), f"{whose} has no option '{name}'", _suggest(options, name), is_in_name=True)
        else:
            yield from _check_option(options[name], value, (*path, name))
    for name, option in options.items():
        if option.required and name not in given:
            yield OptionFault(path, f"{whose} requires '{name}'", option.meaning)


def _suggest(options: Collection[str], meant: str = "") -> str:
    return suggest_nearest(meant, options) or f"Available: {', '.join(options)}."


def _check_option(option: PreparationOption, value: Any, path: OptionPath) -> Iterable[OptionFault]:
    match option.type:
        case "boolean":
            if not isinstance(value, bool):
                yield OptionFault(path, f"'{option.name}' must be true or false")
        case "integer" | "number":
            yield from _check_number(option, value, path)
        case "choice":
            if value not in option.values:
                hint = suggest_nearest(str(value), option.values)
                yield OptionFault(path, f"'{option.name}' must be one of {', '.join(option.values)}", hint)
        case "names" | "files":
            yield from _check_names(option, value, path)
        case "groups":
            yield from _check_groups(option, value, path)
        case "integers":
            yield from _check_integers(option, value, path)
        case "flag-or-names":
            if not isinstance(value, bool):
                yield from _check_names(option, value, path)
        case "ranges" | "sizes":
            yield from _check_inputs(option, value, path)
        case "table":
            if isinstance(value, Mapping):
                yield from _check_table(option.options, value, path, f"'{option.name}'")
            else:
                yield OptionFault(path, f"'{option.name}' must be a mapping", _suggest(option.options))


def _check_number(option: PreparationOption, value: Any, path: OptionPath) -> Iterable[OptionFault]:
    if not _is_number(value) or (option.type == "integer" and value != int(value)):
        yield OptionFault(path, f"'{option.name}' must be a {'whole ' if option.type == 'integer' else ''}number")
    elif option.minimum is not None and value < option.minimum:
        yield OptionFault(path, f"'{option.name}' must be at least {option.minimum:g}")
    elif option.maximum is not None and value > option.maximum:
        yield OptionFault(path, f"'{option.name}' must be at most {option.maximum:g}")


def _check_names(option: PreparationOption, value: Any, path: OptionPath) -> Iterable[OptionFault]:
    if option.type == "files" and isinstance(value, str) and value:
        return
    if not isinstance(value, list) or not value:
        what = "a list of file patterns" if option.type == "files" else "a list of names"
        yield OptionFault(path, f"'{option.name}' must be {what}{', or true or false' if option.type == 'flag-or-names' else ''}")
        return
    for index, item in enumerate(value):
        if not isinstance(item, str) or not item:
            yield OptionFault((*path, index), f"'{option.name}' must be a list of non-empty strings")
        elif option.values and item not in option.values:
            hint = suggest_nearest(item, option.values)
            yield OptionFault((*path, index), f"'{option.name}' accepts only {', '.join(option.values)}", hint)
        elif item in value[:index]:
            yield OptionFault((*path, index), f"'{option.name}' contains '{item}' twice")


def _check_groups(option: PreparationOption, value: Any, path: OptionPath) -> Iterable[OptionFault]:
    """Yield the faults of a list whose items are names or lists of names."""
    if not isinstance(value, list) or not value:
        yield OptionFault(path, f"'{option.name}' must be a list of names, or of lists of names")
        return
    for index, item in enumerate(value):
        if isinstance(item, list):
            yield from _check_names(option, item, (*path, index))
        elif not isinstance(item, str) or not item:
            yield OptionFault((*path, index), f"'{option.name}' must be a list of names, or of lists of names")


def _check_integers(option: PreparationOption, value: Any, path: OptionPath) -> Iterable[OptionFault]:
    """Yield the faults of a list of increasing whole numbers."""
    if not isinstance(value, list) or not value:
        yield OptionFault(path, f"'{option.name}' must be a list of whole numbers")
        return
    for index, item in enumerate(value):
        if not _is_number(item) or item != int(item) or item < 0:
            yield OptionFault((*path, index), f"'{option.name}' must be a list of whole numbers of at least 0")
        elif index and _is_number(value[index - 1]) and item <= value[index - 1]:
            yield OptionFault((*path, index), f"the numbers of '{option.name}' must increase")


def _check_inputs(option: PreparationOption, value: Any, path: OptionPath) -> Iterable[OptionFault]:
    """Yield the faults of `{input: [LOW, HIGH]}` or `{input: [size, ...]}`."""
    if not isinstance(value, Mapping) or not value:
        content = "[LOW, HIGH]" if option.type == "ranges" else "their sizes"
        yield OptionFault(path, f"'{option.name}' must be a mapping of the model's inputs to {content}")
        return
    for name, numbers in value.items():
        if option.type == "ranges" and not _is_range(numbers):
            yield OptionFault((*path, name), f"the range of '{name}' must be [LOW, HIGH]: two numbers, the smaller one first")
        elif option.type == "sizes" and not _is_shape(numbers):
            yield OptionFault((*path, name), f"the sizes of '{name}' must be a list of whole numbers of at least 1")


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)) and value[0] <= value[1]


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(_is_number(size) and size == int(size) and size >= 1 for size in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@cache
def _load_entries() -> dict[str, PreparationEntry]:
    import tomllib

    data = tomllib.loads(_DATA.read_text(encoding="utf-8"))
    kinds = {kind: {**row, "kind": kind, "options": _add_names(row["options"])} for kind, row in data["kinds"].items()}
    return convert(kinds, dict[str, PreparationEntry])


def _add_names(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of options with their names added, including rows of nested tables."""
    return {name: {**row, "name": name, "options": _add_names(row.get("options", {}))} for name, row in table.items()}
