"""Files of an artifact against its manifest: present, whole and unchanged."""

from __future__ import annotations

from collections.abc import Iterator

from epbuild.cache.digests import Count
from epbuild.core.defaults import MANIFEST
from epbuild.core.safepath import BadReference, MissingReference, locate
from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.findings import EMIT_AGAIN, Finding, sentence
from epbuild.verify.manifest import ListedFile
from epbuild.verify.payload import Payload


def manifest_findings(artifact: ArtifactFolder) -> Iterator[Finding]:
    name = artifact.shown(MANIFEST)
    if artifact.flaw is not None:
        yield Finding("manifest", name, "failed", f"The manifest cannot be used: {artifact.flaw}.", "EPB612", EMIT_AGAIN)
    elif artifact.manifest is not None:
        yield Finding("manifest", name, "passed")
    elif artifact.whole:
        message = "There is no manifest of epbuild's, so it is unknown what these files should be."
        yield Finding("manifest", artifact.title, "skipped", message)
    else:
        message = "One model was asked for; its folder is checked with its manifest."
        yield Finding("manifest", artifact.title, "skipped", message)


def file_findings(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Whether every file that the manifest lists is there, inside the folder; and which others are."""
    manifest = artifact.manifest
    if manifest is None:
        return
    for listed in manifest.files.values():
        if not artifact.is_inner(listed.path):
            yield _check_presence(artifact, listed)
    try:
        others = [name for name in artifact.files() if name not in manifest.files and name not in manifest.unlisted]
    except OSError as error:
        message = f"A folder cannot be read: {error.strerror or error}."
        yield Finding("files", artifact.title, "failed", message, "EPB600")
        return
    for name in others:
        message = "The manifest does not list it, so it is unknown what it should be."
        yield Finding("files", artifact.shown(name), "skipped", message)


def digest_findings(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Whether every listed file has the size and the content that it was emitted with; what is missing is not reported again."""
    manifest = artifact.manifest
    files = [listed for listed in manifest.files.values() if not artifact.is_inner(listed.path)] if manifest is not None else []
    with artifact.counting(sum(listed.size for listed in files)) as count:
        for listed in files:
            yield from _check_content(artifact, listed, count)


def _check_content(artifact: ArtifactFolder, listed: ListedFile, count: Count) -> Iterator[Finding]:
    try:
        payload = Payload.whole(locate(artifact.folder, listed.path))
    except (BadReference, OSError):
        return
    name = artifact.shown(listed.path)
    if payload.size != listed.size:
        message = f"It has {payload.size:,} bytes; the manifest has {listed.size:,}."
        yield Finding("digests", name, "failed", message, "EPB613", EMIT_AGAIN)
        return
    try:
        found = payload.sha256(count)
    except OSError as error:
        yield Finding("digests", name, "failed", f"It cannot be read: {error.strerror or error}.", "EPB600")
        return
    if found != listed.sha256:
        message = f"Its content was changed: it has the SHA-256 {found[:12]}…; the manifest has {listed.sha256[:12]}…."
        yield Finding("digests", name, "failed", message, "EPB613", EMIT_AGAIN)
    else:
        yield Finding("digests", name, "passed")


def _check_presence(artifact: ArtifactFolder, listed: ListedFile) -> Finding:
    name = artifact.shown(listed.path)
    try:
        locate(artifact.folder, listed.path)
    except MissingReference:
        return Finding("files", name, "failed", "The manifest lists it, and it is not there.", "EPB615", EMIT_AGAIN)
    except BadReference as error:
        return Finding("files", name, "failed", sentence(str(error)), "EPB615", EMIT_AGAIN)
    return Finding("files", name, "passed")
