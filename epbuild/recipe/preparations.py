"""What a recipe says is done to a model before it is compiled: the entries of its `prepare`, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from epbuild.core.errors import Position, Problem
from epbuild.recipe.fields import Fields
from epbuild.recipe.model import PrepareStep, Reference, Scalar, Setting
from epbuild.recipe.problems import WRONG_VALUE
from epbuild.recipe.source import ScalarNode

RUN = "run"
BUILT_IN = ("quantize", "float16", "simplify", "infer_shapes", "opset", "cut")
"""The kinds that epbuild ships a script for; what their options are, the catalog knows."""
LATER = {RUN: ("in", "out", "model")}
"""What the words of a command may hold, beside what all texts may."""

Rebase = Callable[[str, Position], str]
"""Makes a path relative to the recipe, whichever file it was written in."""


def read_preparations(
    fields: Fields, rebase: Rebase, follow: Callable[[Reference], None], problems: list[Problem]
) -> tuple[PrepareStep, ...]:
    """The entries of a model's `prepare`; `follow` is given each toolchain's name, and what is wrong is added to `problems`."""
    return tuple(_read(Fields(item, problems), rebase, follow, problems) for item in fields.items("prepare"))


def _read(fields: Fields, rebase: Rebase, follow: Callable[[Reference], None], problems: list[Problem]) -> PrepareStep:
    # The schema has seen to it that there is one, where nothing else is wrong.
    kind = next((name for name in (RUN, *BUILT_IN) if name in fields.entries), RUN)
    toolchain = Reference(fields.text("toolchain") or "", fields.where_of("toolchain"))
    follow(toolchain)
    timeout, memory = fields.number("timeout"), fields.size("memory")
    if timeout is not None and timeout <= 0:
        problems.append(Problem(WRONG_VALUE, "This must be more than 0.", fields.where_of("timeout")))
    fields.at_least(1, "memory", memory)
    entry = fields.entries.get(kind)
    return PrepareStep(
        kind=kind,
        where=entry.name_where if entry is not None else fields.where,
        toolchain=toolchain,
        command=tuple(_words(fields)) if kind == RUN else (),
        options=entry.node if entry is not None and kind != RUN else None,
        files=tuple(Reference(rebase(text, where), where) for text, where in fields.texts("files") if text),
        environment={
            name: Setting(value, entry.node.where, entry.name_where)
            for name, (value, entry) in fields.scalars("environment").items()
        },
        timeout=timeout,
        memory=memory,
    )


def _words(fields: Fields) -> Iterator[Setting]:
    for item in fields.items(RUN):
        value: Scalar | None = item.value if isinstance(item, ScalarNode) else None
        if value is not None:
            yield Setting(value, item.where, item.where)
