"""Checks that the EPs of a target can compile, at all and on a given platform."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from epbuild.catalog.catalog import CPU_EP
from epbuild.core.errors import Position, Problem
from epbuild.plan.steps import SessionGroup
from epbuild.plan.target import NO_FALLBACK, PlannedEp, PlannedTarget
from epbuild.recipe.model import Setting, Target

_ALL_WEIGHTS = "2"
"""Value of ep.enable_weightless_mode for contexts without any weights."""


def compile_problems(target: Target, eps: Sequence[PlannedEp]) -> Iterator[Problem]:
    """Yield the problems of a target's EPs that prevent a compile on every machine."""
    if not any(ep.entry.sources for ep in eps):
        for ep in eps:
            reasons = [f"{row.what}: {row.why}" for row in ep.entry.cannot if row.stops and not row.platforms]
            reason = reasons[0] if reasons else "write EPContext models: its catalog entry lists no source of EPContext nodes"
            yield Problem("EPB255", f"{ep.entry.ep} cannot {reason}", _find_place(target, ep))
    for before, after in itertools.pairwise(eps):
        if before.entry.takes_every_node:
            message = f"{before.entry.ep} takes every node and is listed before {after.entry.ep}, for which no nodes are left"
            yield Problem("EPB256", message, _find_place(target, before), f"List {before.entry.ep} last.")


def _find_place(target: Target, ep: PlannedEp) -> Position:
    """Return the position of an EP's name in a target."""
    return next(choice.ep.where for choice in target.eps if choice.ep.name == ep.entry.ep)


def find_session_conflicts(target: PlannedTarget, settings: Mapping[str, Setting]) -> Iterator[Problem]:
    """Yield a problem for each session key that conflicts with an EP of the target. `settings` has the positions of the keys."""
    if not target.may_use_cpu and any(ep.entry.ep == CPU_EP for ep in target.eps):
        message = f"{NO_FALLBACK} excludes {CPU_EP}, but the target lists both"
        yield Problem("EPB214", message, settings[NO_FALLBACK].where, "Remove one of them.")
    key = target.weightless_key
    if key is None:
        return
    for ep in target.compiling:
        if ep.weightless_support == {"none"}:
            on = f" for the device type '{ep.device.type}'" if ep.device.type is not None else ""
            message = f"{ep.entry.ep} writes no weightless contexts{on}"
            yield Problem("EPB214", message, settings[key].where, "Remove the session key.")
        elif ep.weightless_support == {"external"} and target.session_options[key] == _ALL_WEIGHTS:
            message = f"the contexts of {ep.entry.ep} contain all weights that are not external data"
            yield Problem("EPB214", message, settings[key].where, "Set the session key to 1.")


def find_obstacle(target: PlannedTarget, platform: str) -> str | None:
    """Return the reason, as a sentence, why `target` cannot be compiled on `platform` (a value of `sys.platform`), or None."""
    for ep in target.eps:
        for row in ep.entry.cannot:
            if row.stops and row.platforms and row.holds(platform, ep.device.type, ep.provider_options):
                return f"{ep.entry.ep} cannot {row.what} here: {row.why}."
    return None


def find_obstacles(groups: Sequence[SessionGroup], platform: str) -> list[Problem]:
    """Return a problem for each target of the session groups that cannot be compiled on `platform`."""
    found = {}
    for group in groups:
        reason = find_obstacle(group.target, platform)
        if reason is not None:
            hint = "Select only steps that this machine can run."
            found[group.target.name] = Problem("EPB416", f"the target '{group.target.name}': {reason}", group.target.where, hint)
    return list(found.values())
