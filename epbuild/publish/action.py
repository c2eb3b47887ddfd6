"""Publication of one output, put in place whole."""

from __future__ import annotations

from collections.abc import Callable

from epbuild.cache.blobs import BlobStore
from epbuild.cache.digests import Digests
from epbuild.core.directory import mend, prepare
from epbuild.output.existing import Written
from epbuild.output.output import Output
from epbuild.output.pack import Files
from epbuild.plan.steps import Emission
from epbuild.publish.publisher import Publisher, Push
from epbuild.publish.workbench import Workbench


def publish(
    output: Output, store: BlobStore, written: Written, digests: Digests, report: Callable[[str], object], push: Push
) -> Files:
    """Put an output in its place; returns each file's digest and size by its path below the output's root.

    `written` knows what epbuild wrote here before, and notes what of that is kept; `report` gets how models were merged, and what was left
    out; `push` brings an image to a registry. Raises BuildError when something of the user's is in the way, or the output cannot be as it
    is asked for, EnvironmentFailure when the place cannot be written, MissingBlob or DamagedBlob when an artifact has to be made again, and
    what `push` raises.
    """
    emission, key = output.emission, output.key
    with prepare(emission.path, written, emission.id) as draft:
        bench = Workbench(draft / "made", store, report)
        bench.folder.mkdir()
        for sentence in output.notes():
            report(sentence)
        return output.publish_to(Publisher(emission, bench, draft, store, digests, written, push), bench.make, key)


def clear_away(emission: Emission, written: Written) -> None:
    """Remove what killed builds left beside the output of an emission whose lease is held. Raises OSError."""
    mend(emission.path, written)
