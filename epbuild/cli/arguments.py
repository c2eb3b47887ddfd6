"""Arguments and option groups that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import typer

from epbuild.cli import completion
from epbuild.cli.names import expand_step_files, split_names
from epbuild.cli.options import (
    Excludes,
    OptionGroup,
    UsageError,
    declare_option,
    declare_options,
    make_amount_parser,
    make_choice,
    with_default,
)
from epbuild.core.defaults import DEFAULT_RECIPE
from epbuild.core.errors import Position
from epbuild.core.units import parse_bytes, parse_seconds
from epbuild.remote.settings import Mode
from epbuild.session.request import RemoteChoice, Request

if TYPE_CHECKING:
    from epbuild.cluster.address import ClusterAddress

DEFAULT = Path(DEFAULT_RECIPE)
size = make_amount_parser("size", parse_bytes)
"""Parser of a number of bytes, such as `20GB`."""
age = make_amount_parser("time", parse_seconds)
"""Parser of a duration in seconds, such as `30d`."""


def declare_recipe(text: str, default: str | None = None) -> Any:
    """Declare the option `--recipe` with its help."""
    complete = completion.complete_recipes
    return declare_option("--recipe", "-r", metavar="RECIPE", help=text, default=default, autocompletion=complete)


def declare_recipe_argument(text: str, default: str = DEFAULT_RECIPE, *, metavar: str = "[RECIPE]", **settings: Any) -> Any:
    """Declare the argument for a recipe with its help."""
    help_text, complete = with_default(text, default), completion.complete_recipes
    return typer.Argument(metavar=metavar, help=help_text, show_default=False, autocompletion=complete, **settings)


Recipe = Annotated[Path, declare_recipe_argument("The recipe.")]
Recipes = Annotated[list[Path], declare_recipe_argument("One recipe or several.", metavar="[RECIPE]...", default_factory=list)]
RecipeOption = Annotated[
    Path | None, declare_recipe("The recipe. Required if its name looks like a step. All arguments are then steps.")
]


def _declare_names(metavar: str, steps: str, **settings: Any) -> Any:
    return typer.Argument(
        metavar=metavar,
        help=with_default(f"The recipe, then {steps}.", DEFAULT_RECIPE),
        show_default=False,
        autocompletion=completion.complete_recipes_and_steps,
        **settings,
    )


_GLOBS = "ids of steps, globs such as 'emit:decoder/*', or @FILE with one id or glob per line"
Names = Annotated[list[str], _declare_names("[RECIPE] [STEP]...", f"{_GLOBS}; all steps if none is named", default_factory=list)]
Json = Annotated[bool, declare_option("--json", help="Print JSON on standard output, and nothing else.")]
AllWarnings = Annotated[
    bool, declare_option("--all-warnings", help="Print every warning.", default="three with the same text, and the total")
]
Locked = Annotated[bool, declare_option("--locked", help="Fail if a toolchain or a remote model differs from epbuild.lock.")]
NoExec = Annotated[
    bool,
    declare_option("--no-exec", help="Start no programs. Toolchains that were never inspected remain unknown."),
]
Settings = Annotated[
    list[str],
    declare_options("--set", metavar="vars.NAME=VALUE", help="Set a variable of the recipe. Can be given several times."),
]
Jobs = Annotated[
    int | None,
    declare_option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        help="Maximum number of actions that run at once.",
        default="`jobs` in your settings, or the number of CPUs",
    ),
]
Retry = Annotated[bool, declare_option("--retry", help="Retry steps that failed before, even if no input has changed.")]
DryRun = Annotated[bool, declare_option("--dry-run", "-n", help="Show what would be removed, but remove nothing.")]
NewName = Annotated[str | None, declare_option("--name", metavar="NAME", help="Name of the build.", default="name of the folder")]
NewRecipe = Annotated[
    Path, declare_option("--output", "-o", metavar="PATH", help="File to write the recipe to.", default=DEFAULT_RECIPE)
]
Force = Annotated[bool, declare_option("--force", "-f", help="Overwrite an existing file.")]


def declare_models(text: str) -> Any:
    """Declare the option `--model` of commands that write recipes. `text` is the first sentence of its help, without a period."""
    return declare_options("--model", "-m", metavar="PATH", help=f"{text}. Can be given several times.")


def declare_targets(text: str) -> Any:
    """Declare the option `--target` of commands that write recipes. `text` is the first sentence of its help, without a period."""
    return declare_options("--target", "--soc", "-t", metavar="[NAME=]VALUE", help=f"{text}. Can be given several times.")


def declare_sizes(text: str) -> Any:
    """Declare the option `--size` of commands that write recipes. `text` is the first sentence of its help, without a period."""
    return declare_options("--size", "-s", metavar="[MODEL:]INPUT=SIZES", help=f"{text}. Can be given several times.")


Offline = Annotated[bool, declare_option("--offline", help="Contact no other machine: no remote cache, no downloads.")]
InsecureCache = Annotated[bool, declare_option("--insecure", help="Allow a remote cache on another machine over plain http://.")]


class Selection(NamedTuple):
    """Recipe and steps of a command. `places` has the position of each step that was read from a file."""

    recipe: Path
    steps: tuple[str, ...]
    places: Mapping[str, Position]


class Target(OptionGroup, frozen=True, kw_only=True):
    """Arguments for a recipe, optionally with some of its steps."""

    names: Names
    recipe: RecipeOption = None

    def selection(self) -> Selection:
        """Return the recipe and the steps. Raises PlanError (EPB278) for an invalid file of steps."""
        found, steps = split_names(self.names, None if self.recipe is None else str(self.recipe))
        return Selection(Path(found), *expand_step_files(steps))

    def request(self, settings: Iterable[str], *, jobs: int | None = None, **options: Any) -> Request:
        """Return a request for the steps of the recipe. `options` are other fields of `Request`. Raises the errors of `selection`."""
        recipe, steps, places = self.selection()
        if jobs is not None:
            options["jobs"] = jobs
        return Request(recipe, steps, settings=tuple(settings), places=places, **options)


class TargetSteps(Target, frozen=True, kw_only=True):
    """Arguments for a recipe with at least one of its steps."""

    names: Annotated[list[str], _declare_names("[RECIPE] STEP...", _GLOBS)]

    def selection(self) -> Selection:
        """Return the recipe and the steps. Raises UsageError if no step is named."""
        found = super().selection()
        if not found.steps:
            raise UsageError(f"'{found.recipe}' is a recipe: name a step as well, such as 'compile:*'")
        return found


class TargetStep(Target, frozen=True, kw_only=True):
    """Arguments for a recipe, optionally with one of its steps."""

    names: Annotated[list[str], _declare_names("[RECIPE] [STEP]", "the id of one step", default_factory=list)]

    def selection(self) -> Selection:
        """Return the recipe and at most one step. Raises UsageError if several steps are named."""
        found = super().selection()
        if len(found.steps) > 1:
            raise UsageError(f"expected one step, found {len(found.steps)}: {', '.join(found.steps)}")
        return found


class RemoteReading(OptionGroup, frozen=True, kw_only=True):
    """Options for commands that only read the remote cache."""

    panel: ClassVar[str] = "Network"

    remote_cache: Annotated[
        Mode,
        declare_option(
            "--remote-cache",
            **make_choice(("off", "read")),
            help="Read results from the remote cache, if one is configured.",
            default="read",
        ),
    ] = "read"
    offline: Offline = False
    insecure: InsecureCache = False

    @property
    def choice(self) -> RemoteChoice:
        """Remote cache options of a request."""
        return RemoteChoice(self.remote_cache, self.offline, self.insecure)


class Remote(RemoteReading, frozen=True, kw_only=True):
    """Options for commands that can write to the remote cache."""

    remote_cache: Annotated[
        Mode,
        declare_option(
            "--remote-cache",
            **make_choice(("off", "read", "write")),
            help="Read results from the remote cache, if one is configured. With write, also upload new results.",
            default="read",
        ),
    ] = "read"


OFFLINE_WRITES_NOTHING = Excludes(
    ("--remote-cache write",), ("--offline",), "--remote-cache write cannot be combined with --offline"
)

EXECUTOR = "EPBUILD_EXECUTOR"
CERTIFICATES = "EPBUILD_CLUSTER_TLS"
_LOCAL = "local"
Certificates = Annotated[
    str | None,
    declare_option("--tls", metavar="DIR", help="Folder with this machine's certificates.", variable=CERTIFICATES),
]


class Cluster(OptionGroup, frozen=True, kw_only=True):
    """Options for the cluster to build on."""

    panel: ClassVar[str] = "Cluster"

    executor: Annotated[
        str | None,
        declare_option(
            "--executor",
            metavar="ADDRESS",
            help="Scheduler of the cluster to build on, such as dask://host:8786, or 'local' for this machine.",
            default="local",
            variable=EXECUTOR,
        ),
    ] = None
    tls: Certificates = None

    def address_of(self, remote: RemoteReading) -> ClusterAddress | None:
        """Return the address of the scheduler, or None to compile on this machine, as with `--offline`. Raises PlanError."""
        return None if remote.offline else self.address(insecure=remote.insecure)

    def address(self, *, insecure: bool) -> ClusterAddress | None:
        """Return the address of the scheduler from the option or EPBUILD_EXECUTOR, or None to compile on this machine.

        If `--tls` is not set, EPBUILD_CLUSTER_TLS names the certificates. Raises PlanError.
        """
        text = self.executor if self.executor is not None else os.environ.get(EXECUTOR, "")
        if text in ("", _LOCAL):
            return None
        from epbuild.cluster.address import parse_cluster_address

        where = f"--executor {text}" if self.executor is not None else EXECUTOR
        return parse_cluster_address(text, self.tls or os.environ.get(CERTIFICATES), insecure=insecure, where=where)


class ClusterOfPlan(Cluster, frozen=True, kw_only=True):
    """Options of `plan` for a cluster that could build the missing results."""

    executor: Annotated[
        str | None,
        declare_option(
            "--executor",
            metavar="ADDRESS",
            help="Show which machines of this cluster can build the missing results, and how long that takes.",
        ),
    ] = None
