"""Options for loading artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, field


class LoadOptions(Struct, frozen=True):
    """User's options for loading artifacts. They override the manifests."""

    numbers: bool = False
    """True to compare models with their sources."""
    here: bool = False
    """True to report how this machine runs each model."""
    strict: bool = False
    """True to report a skipped check as a failure, except a skipped `compatibility` check."""
    interpreter: Path | None = None
    """Python of the environment that loads the models."""
    device: Literal["cpu", "gpu", "npu"] | None = None
    """Device to load the models on."""
    ep_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the first EP."""
    timeout: float | None = None
    """Maximum seconds for one process. None for no limit."""
    custom_ops: tuple[str, ...] = ()
    """Paths of libraries and names of packages with custom operators, as in a recipe. If empty, the manifest's are used."""
    from_memory: bool = False
    """True to pass models from memory instead of by path."""
