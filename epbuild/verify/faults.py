"""Faulty models of an artifact: those that no EP should be given, and no others."""

from __future__ import annotations

from collections.abc import Iterable

from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.findings import Finding

_OWN = "its bytes are not in order"


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
