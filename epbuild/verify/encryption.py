"""Check of encrypted files, without their key."""

from __future__ import annotations

from collections.abc import Iterator

from epbuild.core.safepath import BadReference, locate, open_regular
from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.findings import EMIT_AGAIN, Finding, format_sentence
from epbuild.verify.manifest import ListedFile


def check_encryption(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Check that the header of every encrypted file agrees with the manifest. The content cannot be checked without the key."""
    for listed in artifact.encrypted.values():
        flaw = _find_flaw(artifact, listed)
        if flaw is not None:
            yield Finding(
                "encryption", artifact.format_path(listed.path), "failed", format_sentence(f"it {flaw}"), "EPB613", EMIT_AGAIN
            )
        else:
            message = "It is encrypted, so its content was not checked. To check it, run `epbuild decrypt` first."
            yield Finding("encryption", artifact.format_path(listed.path), "skipped", message)


def _find_flaw(artifact: ArtifactFolder, listed: ListedFile) -> str | None:
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
