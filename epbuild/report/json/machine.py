"""JSON documents of this machine, its toolchains, the lock and imported recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from epbuild import __version__
from epbuild.core.redact import concealed, redacted
from epbuild.report.json.documents import Document, ProblemView, View, problem_views, view

if TYPE_CHECKING:
    from epbuild.commands.doctor.devices import EpHealth, ToolchainHealth
    from epbuild.commands.doctor.doctor import Diagnoses
    from epbuild.commands.importing.importing import ImportedRecipe
    from epbuild.commands.lock import Locking
    from epbuild.core.errors import Problem


class CheckView(View, frozen=True, kw_only=True):
    """Check of this machine."""

    topic: str
    state: str
    text: str
    hint: str | None
    code: str | None
    name: str | None


class DeviceView(View, frozen=True, kw_only=True):
    """Device that an EP offers."""

    type: str
    vendor: str
    metadata: dict[str, str]


class AttemptView(View, frozen=True, kw_only=True):
    """Compile of a small model with an EP."""

    target: str
    seconds: float | None
    opened: bool
    why: str
    unfit: bool
    compiled: bool


class EpView(View, frozen=True, kw_only=True):
    """EP of a toolchain with its devices."""

    ep: str
    packages: str
    devices: tuple[DeviceView, ...]
    emulated: bool
    missing: str | None
    limit: str | None
    attempt: AttemptView | None


class ToolchainView(View, frozen=True, kw_only=True):
    """Toolchain with its EPs."""

    name: str | None
    packages: str
    onnxruntime: str | None
    eps: tuple[EpView, ...]


class DevicesDocument(Document, frozen=True, kw_only=True):
    """`devices --json`."""

    epbuild: str = __version__
    healthy: bool
    toolchains: tuple[ToolchainView, ...]


class HealthDocument(Document, frozen=True, kw_only=True):
    """`doctor --json`, whose schema is `schemas/doctor.schema.json`."""

    epbuild: str = __version__
    healthy: bool
    checks: tuple[CheckView, ...]
    toolchains: tuple[ToolchainView, ...]


class LockChangeView(View, frozen=True, kw_only=True):
    """Entry that was added to a lock, updated or removed."""

    kind: str
    about: str
    name: str
    old: str | None
    new: str | None
    toolchain: str | None
    platforms: tuple[str, ...]


class LockDocument(Document, frozen=True, kw_only=True):
    """`lock --json`."""

    recipe: str
    lock: str
    changed: bool
    written: bool
    changes: tuple[LockChangeView, ...]
    exported: dict[str, str | None] | UnsetType = UNSET
    """Exported file of each toolchain."""
    warnings: tuple[ProblemView, ...]


class NotCarriedView(View, frozen=True, kw_only=True):
    """Part of a configuration that has no place in a recipe."""

    what: str
    why: str
    hint: str | None


class ImportedDocument(Document, frozen=True, kw_only=True):
    """`import --json`."""

    recipe: str
    tool: str
    ep: str
    models: list[str]
    targets: list[str]
    not_carried_over: list[NotCarriedView]
    warnings: tuple[ProblemView, ...]


def health_document(found: Diagnoses) -> HealthDocument:
    """Return `doctor --json`."""
    return HealthDocument(
        healthy=found.is_healthy,
        checks=tuple(
            view(CheckView, check, text=redacted(concealed(check.text)), name=check.name or None) for check in found.checks
        ),
        toolchains=tuple(map(_toolchain, found.toolchains)),
    )


def devices_document(found: Diagnoses) -> DevicesDocument:
    """Return `devices --json`."""
    return DevicesDocument(healthy=found.is_healthy, toolchains=tuple(map(_toolchain, found.toolchains)))


def lock_document(
    locking: Locking, warnings: Sequence[Problem], exported: Mapping[str, Path | None], *, written: bool
) -> LockDocument:
    """Return `lock --json`."""
    return LockDocument(
        recipe=str(locking.recipe.file),
        lock=str(locking.path),
        changed=not locking.is_written,
        written=written,
        changes=tuple(view(LockChangeView, change) for change in locking.changes),
        exported={name: None if path is None else str(path) for name, path in exported.items()} or UNSET,
        warnings=problem_views(warnings),
    )


def imported_document(done: ImportedRecipe) -> ImportedDocument:
    """Return `import --json`."""
    return ImportedDocument(
        recipe=str(done.path),
        tool=done.tool,
        ep=done.choices.kind.entry.ep,
        models=[*done.choices.models],
        targets=[*done.choices.targets],
        not_carried_over=[view(NotCarriedView, item, hint=item.hint or None) for item in done.left],
        warnings=problem_views(done.warnings),
    )


def _toolchain(found: ToolchainHealth) -> ToolchainView:
    return view(ToolchainView, found, name=found.name or None, eps=tuple(map(_ep, found.eps)))


def _ep(found: EpHealth) -> EpView:
    tried = found.attempt
    attempt = None if tried is None else view(AttemptView, tried, compiled=tried.seconds is not None)
    return view(EpView, found, missing=found.missing or None, limit=found.limit or None, attempt=attempt)
