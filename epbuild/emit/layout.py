"""Which artifact goes where, and which references have to follow: the plan's names applied to what was really made."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from epbuild.errors import BuildError, Problem


@dataclass(frozen=True)
class Stored:
    """An artifact in the store, under the name that its maker gave it."""

    name: str
    digest: str
    size: int


@dataclass(frozen=True)
class StoredModel:
    """An EPContext model with everything that it refers to."""

    member: str
    model: Stored
    binaries: tuple[Stored, ...]
    data: tuple[Stored, ...]


@dataclass(frozen=True)
class Placed:
    """A file to lay out: the artifact, its POSIX path below the output's folder, and the references to rewrite in it."""

    path: str
    role: str
    artifact: Stored
    renames: Mapping[str, str] = field(default_factory=dict)


def arrange(
    models: Sequence[StoredModel], names: Mapping[str, str], binaries: Mapping[str, str], reserved: str, step: str
) -> tuple[Placed, ...]:
    """Where each artifact goes: `names` and `binaries` give the model's and the context binary's path by member, `reserved` one for none.

    External data keeps its location beside its model, since the model names it. Raises BuildError when a model has several context
    binaries, for which the recipe has one name, or when two artifacts would get one path.
    """
    placed: dict[str, Placed] = {reserved.casefold(): Placed(reserved, "reserved", Stored("", "", 0))}
    for model in models:
        path = names[model.member]
        folder = posixpath.dirname(path)
        if len(model.binaries) > 1:
            found = ", ".join(binary.name for binary in model.binaries)
            raise BuildError(
                Problem(
                    "EPB421", f"the model '{model.member}' has several context binaries ({found}) and one name for them", step
                )
            )
        renames = {}
        for binary in model.binaries:
            target = binaries[model.member]
            renames[binary.name] = posixpath.relpath(target, folder or ".")
            _place(placed, Placed(target, "context-binary", binary), step)
        for data in model.data:
            _place(placed, Placed(posixpath.join(folder, data.name), "external-data", data), step)
        changed = {old: new for old, new in renames.items() if old != new}
        _place(placed, Placed(path, "model", model.model, changed), step)
    del placed[reserved.casefold()]
    return tuple(sorted(placed.values(), key=lambda item: PurePosixPath(item.path).parts))


def _place(placed: dict[str, Placed], item: Placed, step: str) -> None:
    # Some file systems hold upper and lower case for one.
    other = placed.setdefault(item.path.casefold(), item)
    if (other.path, other.artifact.digest) != (item.path, item.artifact.digest):
        raise BuildError(Problem("EPB422", f"two different artifacts would be written to '{item.path}'", step))
