"""The jobs of a CI system that make what is missing of a recipe."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from epbuild.cache.workspace import Workspace
from epbuild.commands.plan import survey
from epbuild.core.errors import Problem
from epbuild.engine.events import Progress
from epbuild.session.lock import lock_path, lock_text
from epbuild.session.planning import workspace_of
from epbuild.session.request import Request
from epbuild.survey.costs import likely_seconds
from epbuild.survey.jobs import Label, RunnerJob, Runners, jobs_of, missing_actions

RUNNERS: Mapping[str, Label] = {
    "linux-x86_64": "ubuntu-24.04",
    "linux-arm64": "ubuntu-24.04-arm",
    "windows-x86_64": "windows-2025",
    "windows-arm64": "windows-11-arm",
    "macos-arm64": "macos-15",
    "macos-x86_64": "macos-15-intel",
}
"""The labels of GitHub's own runners."""


class JobMatrix(Struct, frozen=True):
    """The jobs, the longest first, with what there is to warn of."""

    jobs: tuple[RunnerJob, ...]
    warnings: tuple[Problem, ...]


def matrix_of(request: Request, most: int, labels: Mapping[str, Label], progress: Progress | None = None) -> JobMatrix:
    """At most so many jobs for each label of runners; `labels` go over those of RUNNERS. Raises what `survey` does."""
    found = survey(request, progress=progress)
    missing = missing_actions(found)
    if not missing:
        return JobMatrix((), found.plan.warnings)
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        seconds = likely_seconds(found, workspace, workspace.memory(found.configuration))
    jobs, warnings = jobs_of(missing, seconds, Runners({**RUNNERS, **labels}, locked_platforms(request)), most)
    return JobMatrix(tuple(jobs), (*found.plan.warnings, *warnings))


def locked_platforms(request: Request) -> dict[str, tuple[str, ...]]:
    """The platforms that each toolchain is locked for, where there is a lock."""
    path = lock_path(request.recipe)
    text = lock_text(path)
    if text is None:
        return {}
    from epbuild.toolchain.lock_file import read_lock

    return {name: tuple(toolchain.platforms) for name, toolchain in read_lock(text, str(path)).toolchains.items()}
