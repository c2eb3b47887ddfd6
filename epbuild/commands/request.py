"""The request of a user: a recipe, steps of it, and how to go about them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from epbuild.core.defaults import DEFAULT_RECIPE
from epbuild.toolchain.environment import Toolchains, toolchains_here

if TYPE_CHECKING:
    from epbuild.cluster.address import ClusterAddress
    from epbuild.plan.selection import Places
    from epbuild.plan.shards import Shard
    from epbuild.remote.settings import Mode


class RemoteChoice(Struct, frozen=True):
    """What a user wants of the remote cache, if one is named: `offline`, nothing is asked of any machine."""

    mode: Mode = "read"
    offline: bool = False
    insecure: bool = False
    """Whether a server may be spoken to without TLS."""


class Request(Struct, frozen=True):
    """What a user asked for: a recipe, the steps of it (globs over ids; none: all), and how to go about it."""

    recipe: Path = Path(DEFAULT_RECIPE)
    selection: tuple[str, ...] = ()
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    keep_going: bool = False
    settings: tuple[str, ...] = ()
    """Variables of the recipe to set, as `vars.name=value`."""
    memory: int | None = None
    """Bytes of memory for all that runs at once; None: what there is."""
    locked: bool = False
    """Whether only what the recipe's lock has may be built with."""
    rebuild_and_compare: bool = False
    """Whether to make everything again afterwards, and compare."""
    every_model: bool = False
    """Whether to report of every model how far it is compiled, and not only of those that were to do."""
    retry: bool = False
    """Whether to try again what failed before, although nothing that it depends on has changed."""
    remote: RemoteChoice | None = None
    """What to do with a remote cache; None: nothing."""
    cluster: ClusterAddress | None = None
    """The scheduler of other machines that make results; None: all is made here."""
    places: Places = field(default_factory=dict)
    """Where a file has a step that is asked for, by the id or the glob."""
    emits: bool = True
    """Whether outputs are part of it; else it is about results alone."""
    push_only: bool = False
    """Whether it is about the outputs alone that are pushed, of which nothing is left here."""
    compiles: bool = True
    """Whether results that are missing may be made."""
    toolchains: Toolchains = field(default_factory=lambda: toolchains_here())  # noqa: PLW0108 - looked up when a request is made
    shard: Shard | None = None
    """The part of what is asked for that it is about; None: all."""

    def __post_init__(self) -> None:
        """Raises ValueError where nothing could ever run."""
        if self.jobs < 1:
            raise ValueError(f"invalid number of jobs: {self.jobs}")

    def without_programs(self) -> Request:
        """Return this request with no interpreter to be started: what is not remembered of a toolchain stays unknown."""
        return replace(self, toolchains=replace(self.toolchains, may_run=False))

    @property
    def writes(self) -> bool:
        """Whether results are written to a remote cache."""
        return self.remote is not None and self.remote.mode == "write"

    @property
    def is_whole(self) -> bool:
        """Whether it is about all that the recipe asks for."""
        return self.emits_all and not self.selection

    @property
    def emits_all(self) -> bool:
        """Whether outputs are part of it as the recipe has them."""
        return self.emits and not self.push_only
