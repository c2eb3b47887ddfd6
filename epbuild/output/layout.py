"""Which artifact goes where, and which references have to follow: the plan's names applied to what was really made."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epbuild.archive.artifact import Role
from epbuild.core.errors import BuildError, Problem, StepId


@dataclass(frozen=True)
class Stored:
    """An artifact in the store, under the name that its maker gave it."""

    name: str
    digest: str
    size: int


@dataclass(frozen=True)
class StoredModel:
    """An EPContext model with everything that it refers to; each binary comes with the EP that made it."""

    member: str
    model: Stored
    binaries: tuple[tuple[str, Stored], ...]
    data: tuple[Stored, ...]


@dataclass(frozen=True)
class Placed:
    """A file to lay out: the artifact, its POSIX path below the output's folder, and the references to rewrite in it."""

    path: str
    role: Role
    artifact: Stored
    renames: Mapping[str, str] = field(default_factory=dict)


def arrange(
    models: Sequence[StoredModel],
    names: Mapping[str, str],
    binaries: Mapping[str, Mapping[str, str]],
    reserved: str,
    step: str,
) -> tuple[Placed, ...]:
    """Where each artifact goes: `names` gives the model's path by member, `binaries` the context binary's by member and EP.

    `reserved` is a path for none of them. External data keeps its location beside its model, since the model names it. Raises BuildError
    when a model has several context binaries by one EP, for which the recipe has one name, or when two artifacts would get one path.
    """
    placed: dict[str, Placed] = {reserved.casefold(): Placed(reserved, "manifest", Stored("", "", 0))}
    for model in models:
        path = names[model.member]
        folder = posixpath.dirname(path)
        _check_one_each(model, step)
        renames = {}
        for ep, binary in model.binaries:
            target = binaries[model.member][ep]
            renames[binary.name] = _beside(folder, target)
            _place(placed, Placed(target, "context-binary", binary), step)
        for data in model.data:
            _place(placed, Placed(posixpath.join(folder, data.name), "external-data", data), step)
        changed = {old: new for old, new in renames.items() if old != new}
        _place(placed, Placed(path, "model", model.model, changed), step)
    del placed[reserved.casefold()]
    return tuple(sorted(placed.values(), key=lambda item: item.path.split("/")))


def _beside(folder: str, target: str) -> str:
    """The path of `target` as seen from `folder`."""
    above, _, name = target.rpartition("/")
    return name if above == folder else posixpath.relpath(target, folder or ".")  # which takes its time


def _check_one_each(model: StoredModel, step: str) -> None:
    eps = [ep for ep, _ in model.binaries]
    if len(set(eps)) < len(eps):
        found = ", ".join(binary.name for _, binary in model.binaries)
        message = f"the model '{model.member}' has several context binaries ({found}) and one name for them"
        raise BuildError(Problem("EPB421", message, StepId(step)))


def _place(placed: dict[str, Placed], item: Placed, step: str) -> None:
    # Some file systems hold upper and lower case for one.
    other = placed.setdefault(item.path.casefold(), item)
    if (other.path, other.artifact.digest) != (item.path, item.artifact.digest):
        raise BuildError(Problem("EPB422", f"two different artifacts would be written to '{item.path}'", StepId(step)))
