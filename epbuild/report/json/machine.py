"""JSON documents of this machine and its toolchains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epbuild import __version__
from epbuild.commands.doctor.devices import EpDevice, EpHealth, ToolchainHealth
from epbuild.core.redact import concealed, redacted
from epbuild.report.json.documents import Document, View, view

if TYPE_CHECKING:
    from epbuild.commands.doctor.doctor import Diagnoses


class CheckView(View, frozen=True, kw_only=True):
    """Check of this machine."""

    topic: str
    state: str
    text: str
    hint: str | None
    code: str | None
    name: str | None


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
    devices: tuple[EpDevice, ...]
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


def _toolchain(found: ToolchainHealth) -> ToolchainView:
    return view(ToolchainView, found, name=found.name or None, eps=tuple(map(_ep, found.eps)))


def _ep(found: EpHealth) -> EpView:
    tried = found.attempt
    attempt = None if tried is None else view(AttemptView, tried, compiled=tried.seconds is not None)
    return view(EpView, found, missing=found.missing or None, limit=found.limit or None, attempt=attempt)
