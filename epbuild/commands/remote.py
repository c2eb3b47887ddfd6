"""Remote models: where they are once fetched, and the fetching."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from epbuild.cache.blobs import BlobStore
from epbuild.cache.workspace import Workspace
from epbuild.core.digest import document_digest
from epbuild.core.errors import PlanError, StoreError
from epbuild.recipe.address import PackageAddress
from epbuild.recipe.model import ModelSpec

if TYPE_CHECKING:
    from epbuild.engine.events import Progress

_TOLD_SECONDS = 0.2


@dataclass(frozen=True)
class RemoteModels:
    """What is known of a recipe's remote models; the workspace remembers where they were put."""

    workspace: Workspace
    store: BlobStore
    wheels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The SHA-256 that a lock has of the wheels of a release, by its requirement: what is fetched has to be one of these."""
    only_checked: bool = False
    """Whether what was fetched before is no answer for a release in `wheels`, unless it was one of these then."""

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
        from epbuild.commands.events import Fetched, Fetching
        from epbuild.fetch.models import fetch_model

        last = [0.0]

        def arrived(address: str, done: int, total: int | None) -> None:
            if time.monotonic() - last[0] >= _TOLD_SECONDS:
                last[0] = time.monotonic()
                progress.report(Fetching(model.name, address, done, total))

        try:
            remote = fetch_model(
                model.path,
                model.sha256,
                self.store,
                pins=model.data_sha256,
                wheels=self.wheels,
                only_checked=self.only_checked,
                progress=arrived,
                cancelled=cancelled,
            )
        except (PlanError, StoreError) as error:
            raise _placed(error, model) from error
        if remote.graph != known:
            self.workspace.record_fact(_fact(model), str(remote.graph))
            progress.report(Fetched(model.name))
        return remote.graph


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
