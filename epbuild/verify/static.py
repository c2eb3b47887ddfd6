"""Every check of artifacts that needs nothing but their bytes, in the order in which a reader wants to know.

No EP is asked, and no file is opened that is not below the folder that was given.
"""

from __future__ import annotations

from collections.abc import Iterator

from epbuild.verify.artifact import Artifact
from epbuild.verify.contexts import check_partitions, check_sharing, check_source, check_target
from epbuild.verify.findings import Finding
from epbuild.verify.listing import check_digests, check_files, check_manifest
from epbuild.verify.models import check_models, check_references, check_schema, check_source_data
from epbuild.verify.signature import check_signature
from epbuild.verify.statement import check_provenance

CHECKS = (
    check_manifest,
    check_files,
    check_digests,
    check_provenance,
    check_models,
    check_schema,
    check_references,
    check_source_data,
    check_source,
    check_target,
    check_partitions,
    check_sharing,
    check_signature,
)


def check_artifact(artifact: Artifact) -> Iterator[Finding]:
    """The findings of every check, each as soon as it is known. A check that has nothing to look at says nothing."""
    for check in CHECKS:
        yield from check(artifact)
