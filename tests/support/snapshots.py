"""A snapshot of a run that found three steps up to date, whatever they would be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from epbuild.core.errors import Problem
from epbuild.plan.steps import Plan, Step
from epbuild.recipe.model import Recipe
from epbuild.survey.taking import Ended, Looked, take

STEPS = [Step(name, "emit", (), "a") for name in ("a", "b", "c")]
_ACTION = cast("Any", SimpleNamespace(needs=()))


def take_snapshot(
    recipe: Path,
    files: Iterable[Path],
    began: tuple[int, int],
    *,
    environment: Mapping[str, str | None] | None = None,
    absent: Sequence[Path] = (),
    lock: str = "none",
    warnings: Sequence[Problem] = (),
) -> None:
    """Leave one: all of the files concern all of the steps. `files` may have the SHA-256 of each."""
    text = Recipe(recipe, "three", "", {}, {}, {}, {}, ())
    plan = Plan(tuple(STEPS), {"a": _ACTION}, tuple(warnings))
    ended = {"a": Ended("key", True, {})}
    outputs: dict[str, tuple[str, ...]] = {step.id: () for step in STEPS}
    shared = dict(files) if isinstance(files, Mapping) else dict.fromkeys(files, "")
    take(Looked(text, plan, None, began, environment or {}, lock, shared, absent, ended, outputs), (), ())
