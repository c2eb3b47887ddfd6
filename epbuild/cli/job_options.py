"""Options for jobs of a CI system: matrix, runners, shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

from epbuild.cli.options import UsageError, declare_option, declare_options

if TYPE_CHECKING:  # Most commands need no jobs, so import them only for types.
    from epbuild.plan.shards import Shard
    from epbuild.survey.jobs import Label

_EQUAL_JOBS = {
    "CI_NODE_INDEX": ("CI_NODE_TOTAL", 1),  # GitLab
    "BUILDKITE_PARALLEL_JOB": ("BUILDKITE_PARALLEL_JOB_COUNT", 0),
    "CIRCLE_NODE_INDEX": ("CIRCLE_NODE_TOTAL", 0),
    "SEMAPHORE_JOB_INDEX": ("SEMAPHORE_JOB_COUNT", 1),
    "BITBUCKET_PARALLEL_STEP": ("BITBUCKET_PARALLEL_STEP_COUNT", 0),
    "SYSTEM_JOBPOSITIONINPHASE": ("SYSTEM_TOTALJOBSINPHASE", 1),  # Azure Pipelines
}
"""Variables of CI systems: the job's number, mapped to the variable with the number of jobs and to the number of the first job."""

Matrix = Annotated[
    int | None,
    declare_option(
        "--matrix",
        min=1,
        metavar="N",
        help="Print a matrix of CI jobs (JSON) that build the missing results: at most N jobs per kind of runner.",
    ),
]
RunnerLabels = Annotated[
    list[str],
    declare_options(
        "--runner",
        metavar="PLATFORM=LABEL",
        help="With --matrix: labels of the runners for a platform, separated by commas.",
        default="GitHub's labels",
    ),
]
ShardText = Annotated[
    str | None,
    declare_option(
        "--shard",
        metavar="I/N",
        help="Build the results of part I of N, and emit nothing. With auto, I and N are read from the CI system's variables.",
    ),
]


def parse_labels(texts: Iterable[str]) -> dict[str, Label]:
    """Return the runner labels in `--runner` options, by platform. Raises UsageError."""
    from epbuild.toolchain.platforms import PLATFORMS

    found: dict[str, Label] = {}
    for text in texts:
        platform, _, label = text.partition("=")
        labels = tuple(label.split(","))
        if platform not in PLATFORMS or not all(labels):
            raise UsageError(f"invalid runner '{text}': expected PLATFORM=LABEL, where PLATFORM is one of {', '.join(PLATFORMS)}")
        found[platform] = labels if len(labels) > 1 else label
    return found


def parse_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """Parse the value of `--shard`: `I/N`, or `auto` for the shard of this CI job. Raises UsageError."""
    from epbuild.plan.shards import Shard

    if text == "auto":
        text = _find_shard(environment)
    try:
        return Shard.parse(text)
    except ValueError as error:
        raise UsageError(f"invalid shard '{text}'. {error}") from None


def _find_shard(environment: Mapping[str, str]) -> str:
    for name, (total, first) in _EQUAL_JOBS.items():
        number = environment.get(name, "")
        if environment.get(total) == "1":  # For a single job, GitLab sets only the total.
            return "1/1"
        if number and environment.get(total):
            return f"{int(number) - first + 1 if number.isdecimal() else number}/{environment[total]}"
    hint = f"Write the shard, such as 2/5, or set {' or '.join(_EQUAL_JOBS)} and the number of jobs"
    raise UsageError(f"--shard auto found no variables of a CI system with parallel jobs. {hint}")
