"""`epbuild validate`: check a recipe and its models without building them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from epbuild.core.errors import Problem
from epbuild.core.shown import format_path
from epbuild.core.summary import Summarized, Summary
from epbuild.core.units import format_count
from epbuild.plan.possible import find_obstacles
from epbuild.session.planning import read_plan
from epbuild.session.request import Request


class Validation(Summarized, Struct, frozen=True):
    """Facts about a valid recipe."""

    recipe: Path
    counts: Mapping[str, int]
    """Numbers of models, targets, groups and steps, by noun."""
    warnings: Sequence[Problem]
    notes: Sequence[Problem]
    """Steps that can be built only on other machines."""
    unread: Sequence[str]
    """Names of models that were not checked, because they have not been fetched or made yet."""

    def summarize(self) -> Summary:
        """Return the warnings, the notes and the models that were not checked."""
        counts = ", ".join(format_count(number, noun) for noun, number in self.counts.items())
        rows = [("warning", str(problem)) for problem in self.warnings]
        rows += [("note", str(problem)) for problem in self.notes]
        rows += [("not checked", name) for name in self.unread]
        return Summary(f"{format_path(self.recipe)} is valid: {counts}", ("", ""), rows)


def validate(request: Request) -> Validation:
    """Check a recipe and its models. Raises RecipeError or PlanError with all mistakes if the recipe is invalid."""
    recipe, plan = read_plan(request)
    items = {"model": recipe.models, "target": recipe.targets, "group": recipe.groups, "step": plan.steps}
    return Validation(
        request.recipe,
        {noun: len(found) for noun, found in items.items()},
        plan.warnings,
        find_obstacles(list(plan.session_groups.values()), sys.platform),
        plan.list_unread_models(),
    )
