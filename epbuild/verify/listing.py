"""Checks of files against the manifest and the provenance.

Signatures are not checked here. Only a signature check can detect that a file and its provenance statement were changed together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from epbuild.cache.digests import Counting
from epbuild.core.defaults import MANIFEST, STATEMENT
from epbuild.core.digest import Count
from epbuild.core.safepath import BadReference, MissingReference, locate, open_regular
from epbuild.core.shown import describe_files
from epbuild.onnxfile.read.payload import Payload
from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.findings import EMIT_AGAIN, Finding, format_sentence
from epbuild.verify.manifest import ListedFile

_BOTH_AGAIN = "Copy the archive and its statement again from the same build."
_MAX_STATEMENT_BYTES = 64 << 20
_STATEMENT_TYPE = "https://in-toto.io/Statement/"


def check_manifest(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that there is a usable manifest."""
    name = artifact.format_path(MANIFEST)
    if artifact.flaw is not None:
        yield Finding("manifest", name, "failed", f"The manifest cannot be used: {artifact.flaw}.", "EPB612", EMIT_AGAIN)
    elif artifact.manifest is not None:
        yield Finding("manifest", name, "passed")
    elif artifact.whole:
        message = "There is no epbuild manifest, so the expected files are unknown."
        yield Finding("manifest", artifact.title, "skipped", message)
    else:
        message = "Only a single model is checked. To check its manifest too, pass the folder."
        yield Finding("manifest", artifact.title, "skipped", message)


def check_files(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that every listed file is in the folder, and report unlisted files."""
    manifest = artifact.manifest
    if manifest is None:
        return
    for listed in artifact.own_files:
        yield _check_presence(artifact, listed)
    beside = {listed.path for listed in manifest.files.values() if listed.shared is None}
    try:
        others = [name for name in artifact.list_files() if name not in beside and name not in manifest.unlisted]
    except OSError as error:
        message = f"A folder cannot be read: {error.strerror or error}."
        yield Finding("files", artifact.title, "failed", message, "EPB600")
        return
    for name in others:
        message = "The manifest does not list it, so its expected content is unknown."
        yield Finding("files", f"{artifact.place}{name}", "skipped", message)


def check_digests(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that every listed file has the listed size and digest. `check_files` reports missing files."""
    files = artifact.own_files
    sizes = {listed.path: listed.size for listed in files}
    with artifact.counting(sum(sizes.values()), describe_files(sizes)) as count:
        for listed in files:
            yield from _check_content(artifact, listed, count)


def _check_content(artifact: ArtifactFolder, listed: ListedFile, count: Count) -> Iterator[Finding]:
    try:
        payload = Payload.whole(artifact.locate(listed))
    except (BadReference, OSError):
        return
    name = artifact.format_path(listed.path)
    if payload.size != listed.size:
        message = f"It has {payload.size:,} bytes; the manifest lists {listed.size:,}."
        yield Finding("digests", name, "failed", message, "EPB613", EMIT_AGAIN)
        return
    try:
        found = payload.sha256(count)
    except OSError as error:
        yield Finding("digests", name, "failed", f"It cannot be read: {error.strerror or error}.", "EPB600")
        return
    if found != listed.sha256:
        message = f"Its content was changed: its SHA-256 is {found[:12]}…; the manifest lists {listed.sha256[:12]}…."
        yield Finding("digests", name, "failed", message, "EPB613", EMIT_AGAIN)
    else:
        yield Finding("digests", name, "passed")


def _check_presence(artifact: ArtifactFolder, listed: ListedFile) -> Finding:
    name = artifact.format_path(listed.path)
    try:
        artifact.locate(listed)
    except MissingReference:
        message = "The manifest lists it, but it is missing."
        if listed.shared is not None:
            message += " It belongs to the model package that contains this folder."
        return Finding("files", name, "failed", message, "EPB615", EMIT_AGAIN)
    except BadReference as error:
        return Finding("files", name, "failed", format_sentence(str(error)), "EPB615", EMIT_AGAIN)
    return Finding("files", name, "passed")


def check_encryption(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that the header of every encrypted file agrees with the manifest. The content cannot be checked without the key."""
    for listed in artifact.encrypted.values():
        flaw = _find_encryption_flaw(artifact, listed)
        if flaw is not None:
            yield Finding(
                "encryption", artifact.format_path(listed.path), "failed", format_sentence(f"it {flaw}"), "EPB613", EMIT_AGAIN
            )
        else:
            message = "It is encrypted, so its content was not checked. To check it, run `epbuild decrypt` first."
            yield Finding("encryption", artifact.format_path(listed.path), "skipped", message)


def _find_encryption_flaw(artifact: ArtifactFolder, listed: ListedFile) -> str | None:
    """Return the difference between an encrypted file and the manifest. Missing files are reported by `check_files`."""
    from epbuild.runtime.encryption import EncryptionError, read_header  # few artifacts are encrypted

    try:
        with open_regular(locate(artifact.folder, listed.path)) as file:
            header = read_header(file)
    except EncryptionError as error:
        return str(error)
    except (BadReference, OSError):
        return None
    if header is None:
        return "is not encrypted, but the manifest lists it as encrypted"
    if header.name != listed.path:
        return f"was encrypted under another name, {header.name!r}"
    plain = listed.plain
    if plain is not None and (header.size, header.sha256) != (plain.size, plain.digest):
        return "has another content than the manifest lists"
    return None


def check_provenance(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that the provenance statement named by the manifest exists, and covers the manifest and all listed files."""
    manifest = artifact.manifest
    if manifest is None or manifest.provenance is None:
        return
    name = artifact.format_path(manifest.provenance)
    try:
        subjects = _read_subjects(locate(artifact.folder, manifest.provenance))
        own = Payload.whole(locate(artifact.folder, MANIFEST)).sha256()
    except MissingReference:
        yield Finding("provenance", name, "failed", "The manifest names it, but it is missing.", "EPB615", EMIT_AGAIN)
        return
    except BadReference as error:
        yield Finding("provenance", name, "failed", format_sentence(str(error)), "EPB615", EMIT_AGAIN)
        return
    except OSError as error:
        yield Finding("provenance", name, "failed", f"It cannot be read: {error.strerror or error}.", "EPB600")
        return
    if subjects is None:
        yield Finding("provenance", name, "failed", "It is not an in-toto statement about files.", "EPB613", EMIT_AGAIN)
        return
    digests = {MANIFEST: own, **{path: listed.sha256 for path, listed in manifest.files.items()}}
    wrong = [path for path, digest in digests.items() if subjects.get(path) != digest]
    for path in wrong:
        message = (
            "The provenance covers a different file with this name." if path in subjects else "The provenance does not cover it."
        )
        yield Finding("provenance", artifact.format_path(path), "failed", message, "EPB613", EMIT_AGAIN)
    if not wrong:
        yield Finding("provenance", name, "passed")


def check_statement(archive: Path, counting: Counting) -> Finding | None:
    """Check that NAME.intoto.json beside the archive NAME is a statement about the archive. Return None if there is no such file.

    `counting` counts the hashed bytes. Raises OSError if the archive cannot be read.
    """
    place = archive.with_name(f"{archive.name}{STATEMENT}")
    if not place.is_file():
        return None
    try:
        subjects = _read_subjects(place)
    except OSError:
        subjects = None
    if subjects is None:
        return Finding("provenance", place.name, "failed", "It is not a readable in-toto statement.", "EPB637", _BOTH_AGAIN)
    size = archive.stat().st_size
    with counting(size, archive.name) as count:
        digest = Payload(archive, 0, size).sha256(count)
    if digest not in subjects.values():
        message = f"It does not cover this archive, whose SHA-256 is {digest[:12]}…."
        return Finding("provenance", place.name, "failed", message, "EPB637", _BOTH_AGAIN)
    return Finding("provenance", place.name, "passed")


def _read_subjects(path: Path) -> Mapping[str, str] | None:
    """Return the SHA-256 of each subject in an in-toto statement, or None if the file is not a statement. Raises OSError."""
    with open_regular(path) as file:
        content = file.read(_MAX_STATEMENT_BYTES + 1)
    if len(content) > _MAX_STATEMENT_BYTES:
        return None
    try:
        document = json.loads(content)
        if not str(document["_type"]).startswith(_STATEMENT_TYPE):
            return None
        return {str(item["name"]): str(item["digest"]["sha256"]).lower() for item in document["subject"]}
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
