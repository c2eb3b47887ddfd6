"""What a recipe says of one output, read from its mapping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epbuild.errors import Position, Problem
from epbuild.recipe.fields import Fields
from epbuild.recipe.model import Output, Reference, Setting
from epbuild.recipe.problems import WRONG_VALUE
from epbuild.recipe.template import OUTPUT_NAMES

LATER = dict.fromkeys(("path", "model", "context_binary", "base", "component", "push"), OUTPUT_NAMES)
"""The texts of an output that may hold names which only a group and a target give."""

_DEFAULT_MODEL = "${model}_ctx.onnx"
_DEFAULT_CONTEXT_BINARY = "${first_model}_${ep.short}.bin"
_MOST_COMPRESSION = 19  # beyond that zstd wants far more memory, also of whoever unpacks

Match = Callable[[str, Position, str], tuple[str, ...] | None]
"""The names that a glob matches in a section of the recipe; None where that cannot be told. What is wrong is noted."""


def read_output(fields: Fields, match: Match, problems: list[Problem]) -> Output:
    """The output that a mapping stands for; what is wrong with it is added to `problems`."""
    layout: Any = fields.text("layout")
    pack: Any = fields.text("pack")
    level = fields.whole("compression")
    if level is not None and not 1 <= level <= _MOST_COMPRESSION:
        problems.append(Problem(WRONG_VALUE, f"This must be between 1 and {_MOST_COMPRESSION}.", fields.where_of("compression")))
    return Output(
        where=fields.where,
        layout=layout,
        path=_template(fields, "path") or Setting("", fields.where, fields.where),
        model=_template(fields, "model") or Setting(_DEFAULT_MODEL, fields.where, fields.where),
        context_binary=_template(fields, "context_binary") or Setting(_DEFAULT_CONTEXT_BINARY, fields.where, fields.where),
        base=_template(fields, "base"),
        component=_template(fields, "component"),
        groups=_chosen(fields, "groups", match),
        targets=_chosen(fields, "targets", match),
        pack=pack,
        pack_where=fields.where_of("pack"),
        push=_template(fields, "push"),
        compression=Output.compression if level is None else level,
        provenance=fields.flag("provenance"),
        bom=fields.flag("bom"),
    )


def _template(fields: Fields, key: str) -> Setting | None:
    text = fields.text(key)
    return Setting(text, fields.where_of(key), fields.entries[key].name_where) if text else None


def _chosen(fields: Fields, key: str, match: Match) -> tuple[Reference, ...] | None:
    """The groups or targets that an output is for, each once; None: it does not say, or it cannot be told."""
    if key not in fields.entries:
        return None
    found: dict[str, Reference] = {}
    for pattern, where in fields.texts(key):
        names = match(pattern, where, key)
        if names is None:
            return None
        for name in names:
            found.setdefault(name, Reference(name, where))
    return tuple(found.values())
