"""What changed since another report or since outputs, in 80 columns.

Since report.html of 2026-11-22 16:03:11:
enc for phone: 36 -> 12 nodes left; 35.2 MB -> 30.1 MB
Size                                      before      after      change
dist/enc/phone                           35.2 MB    30.1 MB     -5.1 MB   -14.5%
toolchain qnn: onnxruntime-qnn 2.6.0 -> 2.7.0
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime

from epbuild.commands.reporting.changes import ComparedModel, ModelChange, ReportedAgainst
from epbuild.core.units import counted
from epbuild.report.amounts import amount, limited
from epbuild.report.terminal.changes import Sizes, size_rows
from epbuild.report.terminal.screen import BOLD, coloured, painted, wrapped

_MOST = 20
_LEAST_SECONDS = 1.0
_LEAST_PART = 0.2
"""Times that differ by less are left out: a machine is slower now and then."""


def difference_lines(found: ReportedAgainst) -> Iterator[str]:
    since = f"{found.path} of {local_time(found.made_at)}" if found.made_at is not None else found.path
    yield f"{painted('Since', BOLD, coloured(sys.stdout))} {since}:"
    models = [*filter(None, map(_model_words, found.models))]
    versions = [
        f"toolchain {one.toolchain}: {one.package} {one.before or 'none'} -> {one.after or 'none'}" for one in found.versions
    ]
    sources = [
        f"source of {one.model}: {'new' if one.before is None else 'gone' if one.after is None else 'other bytes'}"
        for one in found.sources
    ]
    sizes = [Sizes(one.path, one.before, one.after) for one in found.outputs]
    if not (models or versions or sources or sizes):
        yield "nothing has changed"
        return
    for line in (*limited(models, _MOST), *limited(versions, _MOST), *limited(sources, _MOST)):
        yield from wrapped(line, others="  ")
    if sizes:
        yield from size_rows(sizes)
        changed = sum(len(one.files) for one in found.outputs)
        yield f"{counted(changed, 'file')} with other bytes, in {counted(len(sizes), 'output')}."


def _model_words(change: ModelChange) -> str | None:
    """What became of a model, in a line; None where nothing but times differ, and these only a little."""
    name = f"{change.group}/{change.member} for {change.target}"
    old, new = change.before, change.after
    if old is None or new is None:
        there = new or old
        return f"{name}: {'new' if old is None else 'gone'}" + (f" ({there.outcome})" if there is not None else "")
    parts = [*_parts(old, new)]
    return f"{name}: {'; '.join(parts)}" if parts else None


def _parts(old: ComparedModel, new: ComparedModel) -> Iterator[str]:
    if old.outcome != new.outcome:
        yield f"{old.outcome} -> {new.outcome}"
    if _both(old.fallback_nodes, new.fallback_nodes):
        yield f"{old.fallback_nodes} -> {new.fallback_nodes} nodes left"
    if _both(old.ep_context_nodes, new.ep_context_nodes):
        yield f"{old.ep_context_nodes} -> {new.ep_context_nodes} EPContext nodes"
    if old.size is not None and new.size is not None and old.size != new.size:
        yield f"{amount(old.size)} -> {amount(new.size)}"
    if old.seconds is not None and new.seconds is not None:
        change = abs(new.seconds - old.seconds)
        if change >= _LEAST_SECONDS and change >= _LEAST_PART * old.seconds:
            yield f"{old.seconds:,.1f} s -> {new.seconds:,.1f} s"
    for name in sorted({*(old.accuracy or {})} & {*(new.accuracy or {})}):
        one, other = (old.accuracy or {})[name], (new.accuracy or {})[name]
        if one != other:
            yield f"{name} {one:g} -> {other:g}"


def _both(old: int | None, new: int | None) -> bool:
    """Whether both are known, and differ."""
    return old is not None and new is not None and old != new


def local_time(moment: str) -> str:
    """A moment of RFC 3339 as people here have it; a text that is none, as it is."""
    try:
        return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return moment
