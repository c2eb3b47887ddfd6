"""Fetcher of remote models that uses no network."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from epbuild.cache.blobs import BlobStore
from epbuild.core.errors import Problem, StoreError
from epbuild.fetch.download import FetchProgress
from epbuild.fetch.models import Pins, RemoteModel

SIZE = 1000


class Arrivals(list[tuple[str, int, int | None]]):
    """Listener that keeps its events: the address, the received bytes, and the total."""

    def arrived(self, address: str, done: int, total: int | None) -> None:
        self.append((address, done, total))


@dataclass
class FakeFetcher:
    """Fetcher that has one model of `SIZE` bytes, in two pieces, for every address. It may be unreachable."""

    folder: Path
    files: dict[str, bytes]
    """Files by name, the graph first."""
    asked: list[tuple[str, Pins]] = field(default_factory=list)
    """The requested addresses, each with the pin of its model."""
    out_of_reach: bool = False
    between: Callable[[], None] = lambda: None
    """Callback for arriving pieces."""

    @property
    def graph(self) -> Path:
        return self.folder / next(iter(self.files))

    def fetch_model(
        self,
        text: str,
        pins: Pins,
        store: BlobStore,
        *,
        progress: FetchProgress,
        cancelled: threading.Event,
    ) -> RemoteModel:
        self.asked.append((text, pins))
        if self.out_of_reach:
            raise StoreError(Problem("EPB531", f"{text} cannot be reached"))
        progress.arrived(text, 0, SIZE)
        progress.arrived(text, SIZE // 2, SIZE)
        self.between()
        progress.arrived(text, SIZE, SIZE)
        self.folder.mkdir(exist_ok=True)
        for name, data in self.files.items():
            (self.folder / name).write_bytes(data)
        return RemoteModel(self.graph, {})
