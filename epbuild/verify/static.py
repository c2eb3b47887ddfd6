"""All checks of artifacts that need nothing but their bytes, in order.

No EP is asked, and no file is opened that is not below the folder that was given.
"""

from __future__ import annotations

from collections.abc import Iterator

from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.contexts import partition_findings, sharing_findings, source_findings, target_findings
from epbuild.verify.findings import Finding
from epbuild.verify.listing import digest_findings, file_findings, manifest_findings
from epbuild.verify.models import (
    model_findings,
    reference_findings,
    schema_findings,
    signature_findings,
    source_data_findings,
)
from epbuild.verify.statement import provenance_findings

CHECKS = (
    manifest_findings,
    file_findings,
    digest_findings,
    provenance_findings,
    model_findings,
    schema_findings,
    reference_findings,
    source_data_findings,
    source_findings,
    target_findings,
    partition_findings,
    sharing_findings,
    signature_findings,
)


def check_artifact(artifact: ArtifactFolder) -> Iterator[Finding]:
    """The findings of every check, each as soon as it is known. A check that has nothing to look at has none."""
    for check in CHECKS:
        yield from check(artifact)
