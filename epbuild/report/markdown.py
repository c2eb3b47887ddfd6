"""Comparisons of artifacts in Markdown, for comments on pull requests.

The text is short enough for a comment. It is ASCII, so that every encoding can represent it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from epbuild.core.differences import format_value
from epbuild.core.units import format_count
from epbuild.diff.difference import Comparison, Difference
from epbuild.diff.sizes import SizeChange
from epbuild.report.formatting import Table, format_code, format_percent, format_size, format_size_change, join_names
from epbuild.report.terminal.artifacts import NOT_COMPARED

MAX_CHARACTERS = 65_000
"""Maximum length of a comment. GitHub accepts 65,536 characters."""

_MAX_ROWS = (200, 50, 15, 3, 0)
"""Limits for the rows of a table. They are tried in order until the comment is short enough."""
_MAX_PLACES = 3
_NOTHING = "-"
_REST = ", which `epbuild diff` lists"
_ARROW = "&rarr;"
_SIZED = {"model": "Models", "context binary": "Context binaries", "external data": "External data"}
_SUBJECTS = ("Graph and weights", "Target", "Options", "Settings", "Toolchain", "Contexts", "Names")
_FOLDED = {"Contexts", "Names"}
"""Titles of tables that are folded, because they show consequences of other differences."""


def format_markdown(old: str, new: str, found: Comparison) -> str:
    """Format a comparison as a headline, tables of sizes, and tables of the other differences by subject."""
    not_compared = _describe_not_compared(old, new, found)
    if not found.differences:
        return " ".join(filter(None, (f"**{found.verdict}**", not_compared))) + "\n"
    tables = [table for table in (_make_lone_table(found), *_make_size_tables(found), *_make_fact_tables(found)) if table.rows]
    ending = [*([f"Identical: {', '.join(found.same)}."] if found.same else []), *([not_compared] if not_compared else [])]
    text = ""
    for max_rows in _MAX_ROWS:
        parts = [
            f"**{found.verdict}**",
            _format_totals(old, new, found),
            *(table.markdown(max_rows, _REST) for table in tables),
            *ending,
        ]
        text = "\n\n".join(parts) + "\n"
        if len(text) <= MAX_CHARACTERS:
            break
    return text


def _format_totals(old: str, new: str, found: Comparison) -> str:
    """Return the paths, the total sizes, and the number of outputs that differ."""
    before = sum(item.before or 0 for item in found.sizes)
    after = sum(item.after or 0 for item in found.sizes)
    sizes = (
        f"{format_size(before)} {_ARROW} {format_size(after)} ({_format_change(before, after)})"
        if before != after
        else format_size(after)
    )
    text = f"{format_code(old)} {_ARROW} {format_code(new)}: {sizes}."
    if found.artifacts == ("",):
        return text
    differing = {item.artifact for item in found.differences} & set(found.artifacts)
    alone = [item.kind for item in found.differences if item.is_one_sided_artifact]
    parts_shown = [
        f"Of {format_count(len(found.artifacts), 'output')} on both sides, {len(differing)} differ{'s' if len(differing) == 1 else ''}"
    ]
    parts_shown += [f"{alone.count(kind)} {word}" for kind, word in (("added", "new"), ("removed", "removed")) if kind in alone]
    return f"{text} {', '.join(parts_shown)}."


def _make_lone_table(found: Comparison) -> Table:
    rows = [
        (
            _format_output(item.artifact),
            format_code(item.new or item.old) if item.new or item.old else _NOTHING,
            "new" if item.kind == "added" else "removed",
        )
        for item in found.differences
        if item.is_one_sided_artifact
    ]
    return Table("Outputs on one side only", ("output", "models", ""), tuple(sorted(rows)))


def _make_size_tables(found: Comparison) -> Iterator[Table]:
    several = found.artifacts != ("",)
    senses: dict[tuple[str, str], dict[str, None]] = {}
    for item in found.differences:
        if item.place[0] == "models":
            senses.setdefault((item.artifact, item.place[1]), {})[item.sense] = None
    for kind, title in _SIZED.items():
        sizes = [item for item in found.sizes if item.kind == kind]
        differing = [
            item for item in sizes if item.before != item.after or (kind == "model" and (item.artifact, item.name) in senses)
        ]
        differing.sort(key=lambda item: (-abs((item.after or 0) - (item.before or 0)), item.artifact, item.name))
        rows = tuple(
            (
                *([_format_output(item.artifact)] if several else []),
                format_code(item.name),
                *(_NOTHING if size is None else format_size(size) for size in (item.before, item.after)),
                _format_change(item.before, item.after),
                *([", ".join(_find_senses(item, senses))] if kind == "model" else []),
            )
            for item in differing
        )
        columns = ("output", kind, ">before", ">after", ">change", "differs in")[not several : 6 if kind == "model" else 5]
        rest = len(sizes) - len(differing)
        alike = "without differences" if kind == "model" else "of the same size"
        yield Table(title, columns, rows, f"{rest} more {alike}." if rest else "")
    yield _make_part_table(found, several=several)


def _make_part_table(found: Comparison, *, several: bool) -> Table:
    rows = tuple(
        (
            *([_format_output(item.artifact)] if several else []),
            format_code(item.name),
            f"{part.kind} {format_code(part.name)}" if part.name else part.kind,
            *(_NOTHING if size is None else format_size(size) for size in (part.before, part.after)),
            _format_change(part.before, part.after),
        )
        for item in sorted(found.sizes, key=lambda item: (item.artifact, item.name))
        for part in item.parts
    )
    return Table("Size by part", ("output", "file", "part", ">before", ">after", ">change")[not several :], rows, folded=True)


def _find_senses(item: SizeChange, senses: dict[tuple[str, str], dict[str, None]]) -> Iterable[str]:
    # A model on only one side is shown elsewhere.
    return senses.get((item.artifact, item.name), ()) if item.before is not None and item.after is not None else ()


def _make_fact_tables(found: Comparison) -> Iterator[Table]:
    """Yield tables of differences. Each row has a difference, and the outputs with this difference."""
    several = found.artifacts != ("",)
    tables: dict[str, dict[tuple[str, str, str], list[str]]] = {title: {} for title in _SUBJECTS}
    for item in found.differences:
        if not item.is_one_sided:
            values = (_format_fact(item, item.old), _format_fact(item, item.new))
            where = tables[_find_subject(item)].setdefault((format_code(replace(item, artifact="").what), *values), [])
            where.append(item.artifact)
    for title, facts in tables.items():
        rows = [(*fact, *([_format_outputs(where, found.artifacts)] if several else [])) for fact, where in facts.items()]
        yield Table(title, ("", "before", "after", *(["outputs"] if several else [])), tuple(rows), folded=title in _FOLDED)


def _find_subject(item: Difference) -> str:
    if item.place[0] in ("session_options", "environment") or (item.place[0] == "eps" and item.place[2:3] == ("options",)):
        return "Options"
    return {"target": "Target", "settings": "Settings", "toolchain": "Toolchain", "context": "Contexts", "names": "Names"}.get(
        item.sense, "Graph and weights"
    )


def _format_fact(item: Difference, value: Any) -> str:
    return _NOTHING if value is None and item.kind != "changed" else format_code(format_value(value))


def _format_output(artifact: str) -> str:
    return format_code(artifact.rstrip("/"))


def _format_outputs(where: list[str], everywhere: tuple[str, ...]) -> str:
    if len(where) == len(everywhere) > 1:
        return f"all {len(where)}"
    return join_names([*map(_format_output, where)], _MAX_PLACES)


def _format_change(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "new" if after is not None else "removed" if before is not None else _NOTHING
    part = format_percent(after - before, before)
    return "same size" if before == after else f"{format_size_change(after - before)}{f', {part}' if part else ''}"


def _describe_not_compared(old: str, new: str, found: Comparison) -> str:
    without = [format_code({"A": old, "B": new}[side]) for side in found.without_manifest]
    if not without:
        return ""
    has_none = "has no manifest" if len(without) == 1 else "have no manifests"
    return f"Not compared, because {' and '.join(without)} {has_none}: {NOT_COMPARED}."
