"""Reference page of the Python API, from its functions and classes."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from epbuild import api
from tools.reference.markdown import format_code, format_paragraph, format_table
from tools.reference.report_schema import read_descriptions

_INTRODUCTION = """\
The functions and classes of `epbuild.api`. The guide [Python API](../guides/python-api.md) has examples. Python shells and
notebooks show results of functions as short tables.
"""

_STABILITY = """\
## Stability

These names are stable:

- all names in `epbuild.api`, and the parameters of its functions;
- the fields `selection`, `jobs`, `keep_going`, `settings`, `memory`, `locked`, `retry`, `remote`,
  `emits`, `compiles` and `shard` of `Request`;
- all fields of `BuildResult`, `Problem` and `Finding`;
- the fields of the events `RunStarted`, `StepStarted`, `StepOutput`, `StepFinished`, `StepFailed`,
  `Warned` and `RunFinished`;
- `steps()`, `up_to_date` and `orphans` of `Survey`;
- `step.id`, `step.kind`, `state`, `reasons`, `key` and `outputs` of `StepStatus`.

New fields have defaults. Ignore unknown events, because new kinds may be added. Everything else may
change in any release.

The package is typed (`py.typed`) and passes `mypy --strict`. `import epbuild.api` is fast: each
function imports its dependencies when you call it."""


def build_api_page() -> Iterator[str]:
    """Yield the sections of the page."""
    yield format_paragraph(_INTRODUCTION)
    yield _STABILITY
    yield "## Functions"
    for name, function in list_functions().items():
        yield f"### {name}"
        yield f"```python\n{_read_signature(function)}\n```"
        yield from _format_docstring(function)
    yield "## Classes"
    for name in sorted(name for names in api._MODULES.values() for name in names):
        value = getattr(api, name)
        yield f"### {name}"
        yield from _format_docstring(value)
        if isinstance(value, type) and issubclass(value, Struct) and value.__struct_fields__:
            yield _format_fields(value)


def list_functions() -> dict[str, Callable[..., object]]:
    """Return the functions of the API by name, in their order."""
    return {
        name: value
        for name, value in vars(api).items()
        if inspect.isfunction(value) and value.__module__ == api.__name__ and name[0] != "_"
    }


def _read_signature(function: Callable[..., object]) -> str:
    """Return the signature of a function as its source has it."""
    [signature] = re.findall(r'^def (.*?):\n    """', inspect.getsource(function), re.DOTALL | re.MULTILINE)
    return str(signature)


def _format_docstring(value: Any) -> Iterator[str]:
    for paragraph in (inspect.getdoc(value) or "").split("\n\n"):
        yield format_paragraph(textwrap.dedent(paragraph))


def _format_fields(kind: type[Struct]) -> str:
    """Return a table of a class's fields. Inherited fields come first."""
    types: dict[str, str] = {}
    descriptions: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, Struct) and base.__module__.startswith("epbuild"):
            types |= inspect.get_annotations(base)
            descriptions |= read_descriptions(base)
    rows = [(format_code(name), format_code(types[name]), descriptions.get(name, "")) for name in kind.__struct_fields__]
    return format_table(("field", "type", ""), rows)
