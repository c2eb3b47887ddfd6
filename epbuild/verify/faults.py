"""Which models of an artifact no EP should be given, by what its checks found: those that are at fault, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from epbuild.verify.artifact import Artifact, Model
from epbuild.verify.findings import Finding

_OWN = "its bytes are not in order"


def faulty_models(artifact: Artifact, findings: Iterable[Finding]) -> dict[str, str]:
    """Why a compiled model should not be loaded, as the end of a sentence, by its file; nothing for those that may be.

    What is wrong with a model, or with a file that it refers to, keeps it alone from being loaded; what is wrong with a listed file that
    no model refers to keeps none; anything else, such as the manifest, is about all of them.
    """
    users: dict[str, list[str]] = {}
    for model in artifact.models:
        for name in _files_of(model):
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


def _files_of(model: Model) -> set[str]:
    """A model, its context binaries and its external data, as POSIX paths below the artifact's folder."""
    if isinstance(model.header, str):
        return {model.file}
    data = (str(PurePosixPath(model.file).parent / location) for location in model.header.external_data)
    binaries = (binary for node in model.nodes if (binary := model.binary(node)) is not None)
    return {model.file, *binaries, *data}
