"""Planner of output trees. Keys of trees can be read from a memo instead."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from epbuild.cache.digests import Digests
from epbuild.cache.memo import Memo
from epbuild.core.redact import conceal_values
from epbuild.output.tree import OutputTree, plan_output
from epbuild.plan.made import Made
from epbuild.plan.steps import Emission, Part, SessionGroup
from epbuild.recipe.model import Recipe


class OutputPlanner:
    """Planner of the outputs of a recipe. `digests` returns the SHA-256 of the user's files."""

    def __init__(self, recipe: Recipe, digests: Digests) -> None:
        self._recipe = recipe
        self._digests = digests
        self._last: dict[str, tuple[Sequence[Made], Mapping[Path, str], OutputTree]] = {}

    def plan(self, emission: Emission, made: Sequence[Made]) -> OutputTree:
        """Plan the output of an emission from the results `made`.

        Raises StoreError if a user's file cannot be read, and the errors of `plan_output`.
        """
        files = self._hash_files(emission)
        if emission.id in self._last:
            before, digests, tree = self._last[emission.id]
            same = len(before) == len(made) and all(map(operator.is_, before, made))
            if same and tree.emission is emission and digests == files:
                return tree
        tree = plan_output(emission, made, self._recipe, files)
        self._last[emission.id] = (tuple(made), files, tree)
        return tree

    def plan_key(self, emission: Emission, made: Sequence[Made], memo: Memo) -> tuple[str, dict[str, Any]]:
        """Return the key and the key document of the tree that `plan` returns. Raises the same errors as `plan`."""

        def plan() -> tuple[str, dict[str, Any]]:
            tree = self.plan(emission, made)
            return tree.key, dict(tree.key_document)

        return memo.value("output", self._get_memo_inputs(emission, made), plan, tuple[str, dict[str, Any]])

    def _hash_files(self, emission: Emission) -> dict[Path, str]:
        read = self._recipe.files if emission.provenance else ()
        return self._digests.of_many([*read, *emission.files])

    def _get_memo_inputs(self, emission: Emission, made: Sequence[Made]) -> object:
        """Return all inputs of the output's key. Return None if some are unknown here, such as the release of a compression library."""
        groups = [item.action for item in made if isinstance(item.action, SessionGroup) and not item.needed]
        if len(groups) < len(made) or emission.compression_level is not None:
            return None
        recipe = (self._recipe.name, self._recipe.digest if emission.sbom or emission.provenance else "")
        results = [(item.key, item.result, item.group.fingerprint) for item in made]
        parts = [
            (_list_fields(part), part.target.fingerprint, conceal_values(part.target.environment)) for part in emission.parts
        ]
        own = [getattr(emission, name) for name in emission.__struct_fields__ if name != "parts"]
        return recipe, own, parts, results, list(self._hash_files(emission).items())


def _list_fields(part: Part) -> list[Any]:
    return [getattr(part, name) for name in part.__struct_fields__ if name != "target"]
