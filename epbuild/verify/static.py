"""All checks of artifacts that need nothing but their bytes, in order.

No EP is asked, and no file is opened that is not below the folder that was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.contexts import partition_findings, sharing_findings, source_findings, target_findings
from epbuild.verify.findings import Finding
from epbuild.verify.listing import digest_findings, file_findings, manifest_findings
from epbuild.verify.models import model_findings, reference_findings, schema_findings, signature_findings, source_data_findings
from epbuild.verify.statement import provenance_findings

_OWN = "its bytes are not in order"

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


def faulty_models(artifact: ArtifactFolder, findings: Iterable[Finding]) -> dict[str, str]:
    """Why a compiled model should not be loaded, as the end of a sentence, by its file; nothing for those that may be.

    What is wrong with a model, or with a file that it refers to, keeps it alone from being loaded; what is wrong with a listed file that
    no model refers to keeps none; anything else, such as the manifest, is about all of them.
    """
    users: dict[str, list[str]] = {}
    for model in artifact.models:
        for name in {model.file, *map(model.beside, model.references)}:
            users.setdefault(artifact.shown(name), []).append(model.file)
    listed = artifact.manifest.files if artifact.manifest is not None else ()
    others = {artifact.shown(name) for name in listed}
    faulty: dict[str, str] = {}
    for finding in findings:
        if finding.outcome != "failed":
            continue
        if finding.subject in users:
            faulty.update(dict.fromkeys(users[finding.subject], _OWN))
        elif finding.subject not in others:
            faulty.update({model.file: f"the check '{finding.check}' of {finding.subject} failed" for model in artifact.models})
    return faulty
