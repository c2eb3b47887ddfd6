"""JSON documents of locks and imported recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from epbuild.report.json.documents import Document, ProblemView, View, problem_views, view
from epbuild.toolchain.lock import LockChange

if TYPE_CHECKING:
    from epbuild.commands.importing.importing import ImportedRecipe
    from epbuild.commands.lock import Locking
    from epbuild.core.errors import Problem


class LockDocument(Document, frozen=True, kw_only=True):
    """`lock --json`."""

    recipe: str
    lock: str
    changed: bool
    written: bool
    changes: tuple[LockChange, ...]
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


def lock_document(
    locking: Locking, warnings: Sequence[Problem], exported: Mapping[str, Path | None], *, written: bool
) -> LockDocument:
    """Return `lock --json`."""
    return LockDocument(
        recipe=str(locking.recipe.file),
        lock=str(locking.path),
        changed=not locking.is_written,
        written=written,
        changes=tuple(locking.changes),
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
