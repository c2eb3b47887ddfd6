"""Reference page of JSON documents and events, from the types that write them."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

from msgspec import Struct, UnsetType

from epbuild.commands.reporting.values import Report
from epbuild.core.errors import Problem
from epbuild.engine.events import Event, StepsCurrent
from epbuild.publish import sizes
from epbuild.report.json import artifacts, build, checks, store
from epbuild.report.json.documents import ProblemView
from epbuild.report.json.events import format_event_name
from epbuild.session import events
from epbuild.verify import inspected
from tools.reference.markdown import build_anchor, format_code, format_paragraph, format_table

_SCALARS = {str: "text", int: "integer", float: "number", bool: "`true`, `false`", object: "any", Any: "any"}
_INTRODUCTION = """\
With `--json`, a command prints one JSON document to standard output, and nothing else. `epbuild run --json` prints one event per
line. If a command fails before it has a result, standard output is empty, and the errors are on standard error. `validate --json`
prints errors as `problems`.

The number `format` increases with every change that breaks readers. New keys can be added at any time, so ignore unknown keys.
Sizes are in bytes, durations in seconds. The text is ASCII.
"""
_COMMON_KEYS = """\
Each line is a JSON object with the keys `event` (the name of the event), `format` and `time` (in Unix seconds). The tables list
the other keys. The last event of a build is `run_finished`; with `--rebuild-and-compare` or `--watch`, more events follow.
"""


class _Document(NamedTuple):
    commands: str
    type: Any

    @property
    def first(self) -> str:
        return self.commands.partition(",")[0]


DOCUMENTS = (
    _Document("validate --json", build.ValidationDocument),
    _Document("plan --json, run --dry-run --json, run --check --json", build.PlanDocument),
    _Document("plan --executor ADDRESS --json", build.WorkloadsDocument),
    _Document("plan --matrix N", build.MatrixDocument),
    _Document("explain --json", build.ExplanationDocument),
    _Document("coverage --json", build.CoverageDocument),
    _Document("measure --json", build.MeasurementsDocument),
    _Document("inspect --json FILE", inspected.InspectedModel),
    _Document("inspect --json FILE FILE..., inspect --json FOLDER", inspected.Inspection),
    _Document("verify --json", checks.FindingsDocument),
    _Document("bisect --json STEP", checks.BisectionDocument),
    _Document("diff --json", artifacts.ComparisonDocument),
    _Document("wrap --json BINARY", artifacts.WrappedDocument),
    _Document("import --json", build.ImportedDocument),
    _Document("lock --json", build.LockDocument),
    _Document("gc --json", store.CollectionDocument),
    _Document("cache --json", store.CacheStatsDocument),
    _Document("cache verify --json", store.CacheCheckDocument),
    _Document("cache verify --remote --json", store.RemoteCheckDocument),
    _Document("cache push --json", store.PushDocument),
    _Document("cache key --json", store.KeyDocument),
    _Document("doctor --json", checks.HealthDocument),
    _Document("devices --json", checks.DevicesDocument),
    _Document("devices --ep EP --json", checks.KnownNamesDocument),
    _Document("version --json", checks.VersionDocument),
    _Document("report --json", Report),
)
_SCHEMAS = {checks.HealthDocument: "doctor", checks.DevicesDocument: "doctor", Report: "report"}
_ROOTS = [document.type for document in DOCUMENTS]
UNREPORTED = {StepsCurrent, events.ToolchainLocked}
"""Events that have no line: `StepsCurrent` is printed as several other events, and `ToolchainLocked` belongs to `epbuild lock`."""


def build_json_page() -> Iterator[str]:
    """Yield the parts of the page, after its title."""
    yield from map(format_paragraph, _INTRODUCTION.split("\n\n"))
    shared = _find_shared_types()
    links = [f"- [`epbuild {document.first}`](#{build_anchor(_format_heading(document))})" for document in DOCUMENTS]
    yield "\n".join(["- [Events of `epbuild run --json`](#events)", *links, "- [Shared objects](#shared-objects)"])
    yield "## Events"
    yield format_paragraph(_COMMON_KEYS)
    nested: dict[Any, None] = {}
    for event in sorted(_list_event_types(), key=format_event_name):
        yield f"### {format_event_name(event)}"
        yield from _build_key_table(event)
        nested |= dict.fromkeys(_find_nested(event))
    yield from _build_objects(kind for kind in nested if kind not in shared)
    for document in DOCUMENTS:
        yield f"## {_format_heading(document)}"
        yield "Printed by " + ", ".join(format_code(f"epbuild {command}") for command in document.commands.split(", ")) + "."
        if document.type in _SCHEMAS:
            name = _SCHEMAS[document.type]
            yield f"JSON Schema: [`{name}.schema.json`](../../schemas/{name}.schema.json), or `epbuild schema {name}`."
        yield from _build_key_table(document.type, with_meaning=False)
        yield from _build_objects(kind for kind in _find_nested(document.type) if kind not in shared)
    yield "## Shared objects"
    yield from _build_objects(shared)


def _format_heading(document: _Document) -> str:
    return document.first.replace(" --json", "")


def _list_event_types() -> list[Any]:
    _ = sizes  # its import defines events
    return [event for event in Event.__subclasses__() if event not in UNREPORTED and event.__module__.startswith("epbuild.")]


def _find_shared_types() -> dict[Any, None]:
    """Return the types that several documents have."""
    seen: dict[Any, None] = {}
    shared: dict[Any, None] = {}
    groups = [dict.fromkeys(kind for event in _list_event_types() for kind in _find_nested(event))]
    for found in [*groups, *(dict.fromkeys(_find_nested(document.type)) for document in DOCUMENTS)]:
        shared |= {kind: None for kind in found if kind in seen}
        seen |= found
    return shared


def _build_objects(kinds: Any) -> Iterator[str]:
    for kind in kinds:
        yield f"### {_format_title(kind)}"
        yield from _build_key_table(kind)


def _format_title(kind: Any) -> str:
    name = re.sub(r"(View|Document)$", "", kind.__name__)
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()
    return f"report {words.removeprefix('reported ')}" if kind.__module__.startswith("epbuild.commands.reporting") else words


def _build_key_table(kind: Any, *, with_meaning: bool = True) -> Iterator[str]:
    if with_meaning:
        yield format_paragraph(re.sub(r"\bNone\b", "null", (inspect.getdoc(kind) or "").split("\n\n")[0]))
    rows = [(format_code(field.name), _describe_type(field.type), field.meaning) for field in _list_fields(kind)]
    if rows:
        yield format_table(("key", "type", "meaning"), rows)


class _Field(NamedTuple):
    name: str
    type: Any
    meaning: str


@cache
def _list_fields(kind: Any) -> Sequence[_Field]:
    """Return the keys of an object. Raises KeyError for a field without a docstring."""
    hints, meanings = _read_hints(kind), _read_meanings(kind)
    if is_typeddict(kind):
        return [_Field(name, hints[name], meanings[name]) for name in hints]
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    return [_Field(encoded.rstrip("_"), hints[name], meanings[name]) for name, encoded in names]


def _read_hints(kind: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for base in reversed(getattr(kind, "__mro__", (kind,))):
        names |= _import_for_types(base.__module__) if base.__module__.startswith("epbuild.") else {}
    return get_type_hints(kind, localns=names)


@cache
def _import_for_types(module: str) -> Mapping[str, Any]:
    """Return the names that a module imports for type checkers only."""
    found: dict[str, Any] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for statement in node.body:
                if isinstance(statement, ast.ImportFrom) and statement.module and statement.module.startswith("epbuild."):
                    imported = importlib.import_module(statement.module)
                    found |= {alias.asname or alias.name: getattr(imported, alias.name) for alias in statement.names}
    return found


def _read_meanings(kind: Any) -> dict[str, str]:
    """Return the docstring of each field, also of fields of bases."""
    found: dict[str, str] = {}
    for base in reversed(getattr(kind, "__mro__", (kind,))):
        if base.__module__.startswith("epbuild."):
            [tree] = ast.parse(inspect.getsource(base)).body
            for field, text in itertools.pairwise(getattr(tree, "body", ())):
                is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                if is_field and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    found[field.target.id] = re.sub(r"\bNone\b", "null", " ".join(str(text.value.value).split()))
    return found


def _find_nested(kind: Any) -> dict[Any, None]:
    """Return the types of objects inside an object, in order."""
    found: dict[Any, None] = {}
    waiting = [kind]
    while waiting:
        current = waiting.pop(0)
        for field in _list_fields(current):
            for inner in _find_object_types(field.type):
                if inner not in found and inner not in _ROOTS:
                    found[inner] = None
                    waiting.append(inner)
    return found


def _find_object_types(kind: Any) -> Iterator[Any]:
    if _is_object(kind):
        yield ProblemView if kind is Problem else kind
    for argument in get_args(kind):
        if get_origin(kind) is not Literal:
            yield from _find_object_types(argument)


def _is_object(kind: Any) -> bool:
    return is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, Struct))


def _describe_type(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        words = [_describe_type(one) for one in arguments if one not in (NoneType, UnsetType)]
        ends = [*(["null"] if NoneType in arguments else []), *(["absent"] if UnsetType in arguments else [])]
        return " or ".join([*words, *ends])
    if origin is Literal:
        return ", ".join(format_code(str(value)) for value in arguments)
    if origin in (tuple, list) or kind in (tuple, list):
        return f"list of {_describe_type(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"object: {_describe_type(arguments[1])} by name"
    if _is_object(kind):
        shown = ProblemView if kind is Problem else kind
        section = next((_format_heading(document) for document in DOCUMENTS if document.type is shown), _format_title(shown))
        return f"[{_format_title(shown)}](#{build_anchor(section)})"
    return _SCALARS[kind]
