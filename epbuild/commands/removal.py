"""Removal of outputs that the recipe no longer asks for."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

from epbuild.cache.digests import Digests
from epbuild.cache.state import OutputRecord
from epbuild.core.entries import HiddenFolders
from epbuild.publish.removal import Cleaned, Emitted
from epbuild.survey.orphans import Orphan, Outputs


def remove_orphan(
    outputs: Outputs,
    orphan: Orphan,
    digests: Digests,
    claimed: Collection[Path],
    cancelled: threading.Event,
    hidden: HiddenFolders | None = None,
) -> Cleaned | None:
    """Remove an orphan, less the `claimed` files, and forget it; None if that is done already, or it is no longer an orphan.

    `hidden` is as `mend` has it.

    Raises EnvironmentFailure when its folder cannot be written, StoreError when a file cannot be read, or the workspace not be written,
    and Cancelled when `cancelled` is set while another build is at work there.
    """
    with outputs.held(orphan.directory, cancelled=cancelled):
        output = outputs.recorded(orphan)
        if output is None:
            return None
        cleaned = remove_output(output, outputs.base, digests, claimed, hidden)
        outputs.forget(output)
        return cleaned


def remove_output(
    output: OutputRecord, base: Path, digests: Digests, claimed: Collection[Path], hidden: HiddenFolders | None = None
) -> Cleaned:
    """Remove an output whose lease is held, below the folder `base`; it is not forgotten. Raises what `remove_orphan` does."""
    recorded = {name: file["digest"] for name, file in output.files.items()}
    return Emitted(output.step, base / output.place, recorded, digests, claimed=claimed).remove(base, hidden)
