"""Check of pins, which are the SHA-256 of models in a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from epbuild.core.errors import PlanError, Problem
from epbuild.plan.member import ModelFiles
from epbuild.plan.steps import Plan
from epbuild.recipe.model import ModelSpec


def check_pins(plan: Plan, digests: Mapping[str, str]) -> None:
    """Raise PlanError if a model differs from its pin in the recipe. `digests` maps all files to their SHA-256."""
    problems = [
        Problem("EPB207", message, model.path_where, "Restore the pinned file, or change the pin.")
        for model, files in plan.sources()
        if model.sha256 or model.data_sha256  # few models are pinned
        for message in _find_broken_pins(model, files, digests)
    ]
    if problems:
        raise PlanError(*problems)


def _find_broken_pins(model: ModelSpec, files: ModelFiles, digests: Mapping[str, str]) -> Iterator[str]:
    pins = {f"external data {location}": (files.external.get(location), pin) for location, pin in model.data_sha256.items()}
    if model.sha256:
        pins["graph"] = (files.graph, model.sha256)
    for what, (path, pin) in pins.items():
        if path is None:
            yield f"the model '{model.name}' has no {what}, but the recipe pins it"
        elif digests[str(path)] != pin.lower():
            yield f"the {what} of the model '{model.name}' does not match the recipe's pin: its SHA-256 is {digests[str(path)]}"
