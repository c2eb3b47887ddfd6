"""What a recipe says of the check of numbers (`verify`), read from a model, a group, or a member of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epbuild.core.errors import Position, Problem
from epbuild.recipe.fields import Fields
from epbuild.recipe.model import MadeInputs, Reference, VerifyChoice
from epbuild.recipe.problems import WRONG_VALUE
from epbuild.recipe.source import MappingNode, ScalarNode, SequenceNode

Rebase = Callable[[str | None, Position], str | None]
"""Makes a path relative to the recipe, whichever file it was written in."""


def read_verify(owner: Fields, path: Rebase, problems: list[Problem]) -> VerifyChoice | None:
    """What `owner` says of the check of numbers; None where it says nothing. What is wrong is added to `problems`."""
    entry = owner.entries.get("verify")
    if entry is None:
        return None
    if isinstance(entry.node, ScalarNode):
        return VerifyChoice(entry.node.where, wanted=owner.flag("verify"))
    fields = owner.mapping("verify")
    reference: Any = fields.text("reference")
    unjudged: Any = fields.text("unjudged")
    made = fields.mapping("inputs") if isinstance(_node(fields, "inputs"), MappingNode) else None
    metrics = fields.mapping("metrics")
    return VerifyChoice(
        where=entry.node.where,
        files=_files(fields, path) if made is None and "inputs" in fields.entries else None,
        made=_made(made, problems) if made is not None else None,
        metrics={name: metrics.number(name) or 0.0 for name in metrics.entries} if "metrics" in fields.entries else None,
        reference=reference,
        unjudged=unjudged,
    )


def _node(fields: Fields, key: str) -> object:
    entry = fields.entries.get(key)
    return entry.node if entry is not None else None


def _files(fields: Fields, path: Rebase) -> tuple[Reference, ...]:
    """The globs: one, or a list of them."""
    if isinstance(_node(fields, "inputs"), SequenceNode):
        written = fields.texts("inputs")
    else:
        written = [(fields.text("inputs") or "", fields.where_of("inputs"))]
    return tuple(Reference(path(text, where) or "", where) for text, where in written)


def _made(fields: Fields, problems: list[Problem]) -> MadeInputs:
    seed, samples = fields.whole("seed"), fields.whole("samples")
    ranges = fields.mapping("ranges")
    found: dict[str, tuple[float, float]] = {}
    for name, entry in ranges.entries.items():
        bounds = ranges.numbers(name)
        if len(bounds) != 2 or bounds[0] > bounds[1]:
            problems.append(
                Problem(WRONG_VALUE, "A range is the least number and the largest one, in this order.", entry.node.where)
            )
        else:
            found[name] = (bounds[0], bounds[1])
    return MadeInputs(
        seed=MadeInputs.seed if seed is None else seed,
        samples=MadeInputs.samples if samples is None else samples,
        ranges=found,
        places={name: entry.name_where for name, entry in ranges.entries.items()},
    )
