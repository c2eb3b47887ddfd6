"""Descriptions of outputs, each made once for the results that it is of."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from epbuild.cache.digests import Digests
from epbuild.output.output import Output
from epbuild.output.parts import Inputs
from epbuild.plan.made import Made
from epbuild.plan.steps import Emission, SessionGroup
from epbuild.plan.verification import Verification
from epbuild.recipe.model import Recipe


class Descriptions:
    """The outputs of a recipe as they have to be; `digests` has those of the user's files."""

    def __init__(self, recipe: Recipe, digests: Digests) -> None:
        self._recipe = recipe
        self._digests = digests
        self._last: dict[str, tuple[Sequence[Made], Output]] = {}

    def of(self, emission: Emission, made: Sequence[Made]) -> Output:
        """The output of an emission of what was `made`, as it has to be now. Raises StoreError when a file of the user's cannot be read."""
        read = self._recipe.files if emission.provenance else ()
        files = self._digests.of_many([*read, *emission.files])
        before, last = self._last.get(emission.id, ((), None))
        same = len(before) == len(made) and all(map(operator.is_, before, made))
        if last is not None and same and last.emission is emission and last.inputs.files == files:
            return last
        groups, checks = ([item for item in made if isinstance(item.action, kind)] for kind in (SessionGroup, Verification))
        output = Output(emission, groups, Inputs(self._recipe, files), checked=checks)
        self._last[emission.id] = (tuple(made), output)
        return output
