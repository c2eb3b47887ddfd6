"""The check of numbers (`verify`) of a model, a group, or a member of one."""

from __future__ import annotations

from typing import Any

from epbuild.core.errors import Problem
from epbuild.recipe.fields import MappingReader
from epbuild.recipe.model import MadeInputs, Reference, VerifyChoice
from epbuild.recipe.nodes import MappingNode, Node, ScalarNode, SequenceNode
from epbuild.recipe.problems import WRONG_VALUE


def read_verify(owner: MappingReader) -> VerifyChoice | None:
    """Read the `verify` of a model, a group or a member; None where there is none."""
    entry = owner.entries.get("verify")
    if entry is None:
        return None
    if isinstance(entry.node, ScalarNode):
        return VerifyChoice(entry.node.where, wanted=owner.flag("verify"))
    fields = owner.mapping("verify")
    reference: Any = fields.text("reference")
    unjudged: Any = fields.text("unjudged")
    device: Any = fields.text("device")
    inputs = fields.entries.get("inputs")
    metrics = fields.mapping("metrics")
    return VerifyChoice(
        where=entry.node.where,
        files=_globs(fields, inputs.node) if inputs and not isinstance(inputs.node, MappingNode) else None,
        made=_made(fields.mapping("inputs")) if inputs and isinstance(inputs.node, MappingNode) else None,
        metrics={name: metrics.number(name) or 0.0 for name in metrics.entries} if "metrics" in fields.entries else None,
        reference=reference,
        unjudged=unjudged,
        device=device,
    )


def overlaid(own: VerifyChoice | None, base: VerifyChoice | None) -> VerifyChoice | None:
    """Put a member's own choice over that of its group, key by key."""
    if own is None or base is None or not base.wanted or not own.wanted:
        return base if own is None else own
    has_inputs = own.files is not None or own.made is not None
    return VerifyChoice(
        where=own.where,
        files=own.files if has_inputs else base.files,
        made=own.made if has_inputs else base.made,
        metrics=base.metrics if own.metrics is None else own.metrics,
        reference=own.reference or base.reference,
        unjudged=own.unjudged or base.unjudged,
        device=own.device or base.device,
    )


def _globs(fields: MappingReader, node: Node) -> tuple[Reference, ...]:
    """The globs: one, or a list of them."""
    several = isinstance(node, SequenceNode)
    written = fields.texts("inputs") if several else [(fields.text("inputs") or "", node.where)]
    return tuple(fields.rebased(text, where) for text, where in written)


def _made(fields: MappingReader) -> MadeInputs:
    seed, samples = fields.integer("seed"), fields.integer("samples")
    defaults, ranges = MadeInputs(), fields.mapping("ranges")
    found: dict[str, tuple[float, float]] = {}
    for name, entry in ranges.entries.items():
        bounds = ranges.numbers(name)
        if len(bounds) == 2 and bounds[0] <= bounds[1]:
            found[name] = (bounds[0], bounds[1])
        elif len(bounds) == 2:  # else something was wrong with one of them, or with their number
            message = "a range is the least number and the largest one, in this order"
            fields.problems.append(Problem(WRONG_VALUE, message, entry.node.where))
    return MadeInputs(
        seed=defaults.seed if seed is None else seed,
        samples=defaults.samples if samples is None else samples,
        ranges=found,
        places={name: entry.name_where for name, entry in ranges.entries.items()},
    )
