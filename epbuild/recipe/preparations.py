"""The entries of a model's `prepare`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from epbuild.recipe.fields import MappingReader
from epbuild.recipe.model import PrepareStep, Setting
from epbuild.recipe.nodes import Scalar, ScalarNode

RUN: Final = "run"
BUILT_IN: Final = ("quantize", "float16", "simplify", "infer_shapes", "opset", "cut")
"""The kinds that epbuild ships a script for; what their options are, the catalog knows."""
LATER: Final = {RUN: ("in", "out", "model")}
"""What the words of a command may hold, beside what all texts may."""


def read_preparations(fields: MappingReader) -> tuple[PrepareStep, ...]:
    return tuple(_read_preparation(fields.of(item)) for item in fields.items("prepare"))


def _read_preparation(fields: MappingReader) -> PrepareStep:
    # The schema has seen to it that there is one, where nothing else is wrong.
    kind = next((name for name in (RUN, *BUILT_IN) if name in fields.entries), RUN)
    entry = fields.entries.get(kind)
    return PrepareStep(
        kind=kind,
        where=entry.name_where if entry is not None else fields.where,
        toolchain=fields.reference("toolchain"),
        command=tuple(_words(fields)) if kind == RUN else (),
        options=entry.node if entry is not None and kind != RUN else None,
        files=fields.paths("files"),
        environment=fields.settings("environment"),
        timeout=fields.number("timeout"),
        memory=fields.size("memory"),
    )


def _words(fields: MappingReader) -> Iterator[Setting]:
    for item in fields.items(RUN):
        value: Scalar | None = item.value if isinstance(item, ScalarNode) else None
        if value is not None:
            yield Setting(value, item.where, item.where)
