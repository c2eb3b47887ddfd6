"""Large models that are hashed while they are planned with, in another process.

In a checkout where nothing was looked at yet, all models are hashed before it is known what is to do. Which they are is known as soon as
the recipe is read: to hash 64 MB takes as long as all else until then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from epbuild.cache.digests import Digests, NewMemory, StatKey
from epbuild.cache.workspace import FileMemory
from epbuild.core.digest import LARGE_BYTES
from epbuild.core.errors import EpbuildError
from epbuild.core.forked import Forked, processes
from epbuild.plan.sources import find_source
from epbuild.recipe.model import ModelSpec, Recipe

_FEW = 200
"""More models, or more files beside one, are not looked through for a large one: 8,000 small models took as long in another process."""


class HashedAhead:
    """The digests that another process finds, which ends with the `with` block."""

    def __init__(self) -> None:
        self._process: Forked | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.end()

    def begin(self, recipe: Recipe) -> None:
        """Begin with the models that the groups of a recipe have on this machine, where it is worth it."""
        named = dict.fromkeys(member.model.name for group in recipe.groups.values() for member in group.members)
        models = [model for name in named if not (model := recipe.models[name]).is_remote]
        folders = {(recipe.directory / model.path).parent for model in models}
        if processes() > 1 and len(models) <= _FEW and any(map(_has_large, folders)):
            self._process = Forked.begin(lambda: _found(models, recipe.directory))

    def remember(self, memory: FileMemory) -> None:
        """Have a workspace's memory of files know them. Raises StoreError."""
        if self._process is None:
            return
        with suppress(EOFError):  # it came to nothing: then they are hashed when they are needed
            found = self._process.result()
            memory.put_many({path: (StatKey(*key), digest) for path, key, digest in found})


def _found(models: Iterable[ModelSpec], base: Path) -> Sequence[tuple[str, tuple[int, ...], str]]:
    """Absolute path, stat key and digest of each file of models. What is wrong with one is found again by those who need it."""
    collected = NewMemory()
    files: list[Path] = []
    for model in models:
        with suppress(EpbuildError):
            source = find_source(model, base, lambda model: None)
            files += source.files.all if source is not None else ()
    with suppress(EpbuildError):
        Digests(collected).of_many(files)
    return [(path, tuple(key), digest) for path, (key, digest) in collected.entries.items()]


def _has_large(folder: Path) -> bool:
    """Whether a large file is in a folder with models: one of these, or its external data, which mostly lies beside it."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.stat().st_size >= LARGE_BYTES for entry in islice(entries, _FEW))
    except (OSError, ValueError):
        return False
