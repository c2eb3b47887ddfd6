"""What an output consists of before it is written: every file with its place, the name of its bytes, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal[
    "model",
    "context-binary",
    "external-data",
    "base-model",
    "base-data",
    "genai-config",
    "asset",
    "manifest",
    "provenance",
    "bom",
]
"""What a file is to its readers. `asset`: a file of the user's that is shipped as it is, such as a tokenizer."""


@dataclass(frozen=True)
class Content:
    """One file of an output: its POSIX path below the output's root, its size in bytes and its SHA-256."""

    path: str
    role: Role
    size: int
    sha256: str
    file: Path | None = None
    """Where the finished file lies that was made for this output; None: it is the blob of that digest in the store."""


Write = Callable[[memoryview], object]
"""Takes the next bytes of a file; they are only lent."""

Pour = Callable[[Content, Write], None]
"""Gives the bytes of a content, in order and piece by piece, to a `Write`, and checks them on the way.

Raises MissingBlob or DamagedBlob when the store has them no longer, and StoreError when they cannot be read.
"""
