"""`epbuild merge`: one model out of several compiled ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from epbuild.catalog.catalog import BUILT_IN
from epbuild.onnxfile.merge.connection import read_connections
from epbuild.onnxfile.merge.merge import Merged, members_of, merge_models


def merge(models: Sequence[Path], prefixes: Sequence[str], connections: Sequence[str], output: Path) -> Merged:
    """Merge models, in the order in which they run, as `output`; a prefix is for each, or there are none. Raises ChangeRefused."""
    wanted = None
    if connections:
        wanted = read_connections(connections, members_of(models))
    named = list(zip(models, prefixes or [""] * len(models), strict=True))
    return merge_models(named, wanted, output, BUILT_IN.context_changes())
