"""Snapshot of a run that found three arbitrary steps current."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from epbuild.cache.digests import NONE_UNCHANGED
from epbuild.core.errors import Problem
from epbuild.plan.steps import Step
from epbuild.recipe.model import Recipe
from epbuild.survey.snapshot_writer import Observations, write_snapshot
from epbuild.survey.status import StepStatus

STEPS = [Step(name, "emit", (), "a") for name in ("a", "b", "c")]


def take_snapshot(
    recipe: Path,
    files: Iterable[Path],
    began: tuple[int, int],
    *,
    environment: Mapping[str, str | None] | None = None,
    absent: Sequence[Path] = (),
    lock: str = "none",
    warnings: Sequence[Problem] = (),
    is_current: bool = True,
) -> None:
    """Take a snapshot. `files` may have the SHA-256 of each."""
    observations = Observations(
        recipe=Recipe(recipe, "three", "", {}, {}, {}, {}, ()),
        began=began,
        variables=environment or {},
        lock=lock,
        warnings=warnings,
        files={str(path): files[path] if isinstance(files, Mapping) else "" for path in files},
        absent=absent,
        unchanged=NONE_UNCHANGED,
        steps=[StepStatus(step, "current", (), "key", ()) for step in STEPS],
        is_current=is_current,
    )
    write_snapshot(observations, (), ())
