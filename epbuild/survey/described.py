"""Trees of outputs, each planned once for the results that it consists of."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path

from epbuild.cache.digests import Digests
from epbuild.output.tree import OutputTree, plan_output
from epbuild.plan.made import Made
from epbuild.plan.steps import Emission
from epbuild.recipe.model import Recipe


class OutputPlanner:
    """Planner of the outputs of a recipe; `digests` has the SHA-256 of the user's files."""

    def __init__(self, recipe: Recipe, digests: Digests) -> None:
        self._recipe = recipe
        self._digests = digests
        self._last: dict[str, tuple[Sequence[Made], Mapping[Path, str], OutputTree]] = {}

    def plan(self, emission: Emission, made: Sequence[Made]) -> OutputTree:
        """Plan the output of an emission from the results `made`.

        Raises StoreError if a user's file cannot be read, and what `plan_output` raises.
        """
        read = self._recipe.files if emission.provenance else ()
        files = self._digests.of_many([*read, *emission.files])
        if emission.id in self._last:
            before, digests, tree = self._last[emission.id]
            same = len(before) == len(made) and all(map(operator.is_, before, made))
            if same and tree.emission is emission and digests == files:
                return tree
        tree = plan_output(emission, made, self._recipe, files)
        self._last[emission.id] = (tuple(made), files, tree)
        return tree
