"""Checks of artifacts that only read files, in the order in which they run.

No EP is loaded, and no file outside the artifact's folder is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.contexts import check_node_sources, check_partitions, check_sharing, check_targets
from epbuild.verify.findings import Finding
from epbuild.verify.listing import check_digests, check_files, check_manifest, check_provenance
from epbuild.verify.models import check_model_references, check_models, check_schema, check_signatures, check_source_data

_FILE_FAULT = "one of its files failed a check"

CHECKS = (
    check_manifest,
    check_files,
    check_digests,
    check_provenance,
    check_models,
    check_schema,
    check_model_references,
    check_source_data,
    check_node_sources,
    check_targets,
    check_partitions,
    check_sharing,
    check_signatures,
)


def check_artifact(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Run all checks, and yield each finding as soon as it is known."""
    for check in CHECKS:
        yield from check(artifact)


def find_faulty_models(artifact: ArtifactFolder, findings: Iterable[Finding]) -> dict[str, str]:
    """Return the models that must not be loaded, by file, with the reason as the end of a sentence.

    A fault in a model, or in a file that it refers to, excludes only that model. A fault in another listed file excludes no
    model. Any other fault, such as a fault in the manifest, excludes all models.
    """
    users: dict[str, list[str]] = {}
    for model in artifact.models:
        for name in {model.file, *map(model.resolve_beside, model.references)}:
            users.setdefault(artifact.format_path(name), []).append(model.file)
    listed = artifact.manifest.files if artifact.manifest is not None else ()
    others = {artifact.format_path(name) for name in listed}
    faulty: dict[str, str] = {}
    for finding in findings:
        if finding.outcome != "failed":
            continue
        if finding.subject in users:
            faulty.update(dict.fromkeys(users[finding.subject], _FILE_FAULT))
        elif finding.subject not in others:
            faulty.update({model.file: f"the check '{finding.check}' of {finding.subject} failed" for model in artifact.models})
    return faulty
