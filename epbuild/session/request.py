"""Request of a user: a recipe, the steps to select, and options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.core.defaults import DEFAULT_RECIPE
from epbuild.core.user_settings import get_jobs
from epbuild.toolchain.environment import Toolchains, list_toolchains

if TYPE_CHECKING:
    from epbuild.cluster.address import ClusterAddress
    from epbuild.plan.selection import Places
    from epbuild.plan.shards import Shard
    from epbuild.remote.settings import Mode

ONLINE = "Run the command once without --offline."
"""Hint of errors for files that have not been downloaded yet."""


class RemoteChoice(Struct, frozen=True):
    """Use of the remote cache, if there is one. If `offline` is true, the network is not used."""

    mode: Mode = "read"
    offline: bool = False
    insecure: bool = False
    """True if a server may be used without TLS."""


class Request(Struct, frozen=True):
    """Recipe, globs that select steps by id (all steps if there are none), and options."""

    recipe: Path = Path(DEFAULT_RECIPE)
    selection: tuple[str, ...] = ()
    jobs: int = field(default_factory=get_jobs)
    keep_going: bool = False
    settings: tuple[str, ...] = ()
    """Variables of the recipe to set, as `vars.name=value`."""
    memory: int | None = None
    """Bytes of memory for all running actions. None means all available memory."""
    locked: bool = False
    """True if everything must match the recipe's lock."""
    rebuild_and_compare: bool = False
    """True to rebuild everything after the build, and compare the results."""
    every_model: bool = False
    """True to report the coverage of every model, not only of compiled models."""
    retry: bool = False
    """True to retry earlier failures whose inputs have not changed."""
    remote: RemoteChoice | None = None
    """Use of a remote cache. None means no remote cache."""
    cluster: ClusterAddress | None = None
    """Scheduler of other machines that build results. None means this machine."""
    places: Places = field(default_factory=dict)
    """Positions of those ids and globs of `selection` that were read from a file."""
    emits: bool = True
    """True if outputs are emitted. Otherwise, only results are built."""
    push_only: bool = False
    """True if outputs are only pushed, without being written on this machine."""
    compiles: bool = True
    """True if missing results may be built."""
    toolchains: Toolchains = field(default_factory=lambda: list_toolchains())  # noqa: PLW0108 - evaluated when a request is created
    shard: Shard | None = None
    """Shard to build. None means all shards."""

    def __post_init__(self) -> None:
        """Check the number of jobs. Raises ValueError."""
        if self.jobs < 1:
            raise ValueError(f"invalid number of jobs '{self.jobs}': expected 1 or more")

    def without_programs(self) -> Request:
        """Return a copy of this request that starts no interpreters. Unknown toolchains then stay unknown."""
        return replace(self, toolchains=replace(self.toolchains, may_run=False))

    @property
    def writes(self) -> bool:
        """True if results are written to a remote cache."""
        return self.remote is not None and self.remote.mode == "write"

    @property
    def is_offline(self) -> bool:
        """True if the request allows no network access."""
        return self.remote is not None and self.remote.offline

    @property
    def is_whole(self) -> bool:
        """True if the request is for the whole recipe."""
        return self.emits_all and not self.selection

    @property
    def emits_all(self) -> bool:
        """True if outputs are emitted as the recipe defines them."""
        return self.emits and not self.push_only
