"""`epbuild decrypt`: write the plain form of an encrypted artifact."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.archive.opened import open_artifact
from epbuild.core.canonical import JsonFile
from epbuild.core.clone import copy_file
from epbuild.core.defaults import MANIFEST
from epbuild.core.digest import Blob, Hasher
from epbuild.core.errors import EnvironmentFailure, NothingToVerify, Position, Problem, VerifyError
from epbuild.core.safepath import BadReference, locate, open_regular
from epbuild.core.shown import ProgressLines, format_path
from epbuild.onnxfile.edit.staging import make_exists_error
from epbuild.publish.keys import Keys
from epbuild.recipe.model import Encryption
from epbuild.verify.artifact import ArtifactFolder, find_artifacts


class Decrypted(Struct, frozen=True):
    """Plain artifacts that were written, and the paths of the files that were decrypted."""

    output: Path
    files: tuple[str, ...]


def decrypt(artifact: Path, output: Path, key_variable: str, lines: ProgressLines) -> Decrypted:
    """Write the plain form of the encrypted artifacts at a path to the new folder `output`. The key is in an environment variable.

    The manifests then list plain files. They name no provenance statement, because a statement is about the encrypted files. `lines`
    receives progress messages. Raises ChangeRefused (EPB624) if `output` exists, NothingToVerify (EPB600) if no file is encrypted,
    VerifyError (EPB658) if a file cannot be decrypted, and EnvironmentFailure if the key or the output's folder cannot be used.
    """
    if output.exists():
        raise make_exists_error(output)
    with open_artifact(artifact, lines) as received:
        found = [one for one in find_artifacts(received.place) if one.encrypted]
        if not found:
            raise NothingToVerify(Problem("EPB600", f"{format_path(artifact)} has no encrypted files"))
        key = Keys(Path()).read(Encryption(Position(str(artifact), 1, 1), key_variable), None)
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as folder:
                draft = Path(folder) / "plain"
                for one in found:
                    _write_plain(one, draft / one.place, key)
                draft.rename(output)
        except OSError as error:
            message = f"{format_path(output)} cannot be written: {error.strerror or error}"
            raise EnvironmentFailure(
                Problem("EPB424", message, None, "Check the free space and the permissions of its folder.")
            ) from error
    return Decrypted(output, tuple(one.format_path(name) for one in found for name in one.encrypted))


def _write_plain(artifact: ArtifactFolder, folder: Path, key: bytes) -> None:
    """Write the plain form of one artifact to a folder. Raises VerifyError and OSError."""
    manifest = artifact.manifest
    if manifest is None:
        raise VerifyError(Problem("EPB612", f"{artifact.title} has no usable manifest"))
    for listed in manifest.files.values():
        place = folder / listed.path
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            source = locate(artifact.folder, listed.path)
        except BadReference as error:
            raise VerifyError(Problem("EPB615", f"{artifact.format_path(listed.path)}: {error}")) from error
        if listed.plain is None:
            copy_file(source, place)
        else:
            _decrypt_file(source, place, listed.path, listed.plain, artifact.format_path(listed.path), key)
    (folder / MANIFEST).write_bytes(JsonFile(_describe_plain(manifest.document)).data)


def _decrypt_file(source: Path, place: Path, name: str, plain: Blob, title: str, key: bytes) -> None:
    from epbuild.runtime import encryption  # needs the package cryptography

    hasher = Hasher()
    try:
        with open_regular(source) as file, place.open("wb") as out:
            _, pieces = encryption.decrypt(file, key, name, plain.digest)
            for piece in pieces:
                hasher.update(piece)
                out.write(piece)
    except encryption.EncryptionError as error:
        raise VerifyError(Problem("EPB658", f"{title} cannot be decrypted: it {error}")) from None
    if hasher.blob != plain:
        raise VerifyError(Problem("EPB658", f"{title} cannot be decrypted: its content is not the one that the manifest lists"))


def _describe_plain(document: Any) -> dict[str, Any]:
    """Return the manifest of the plain files."""
    files = [
        {**{name: value for name, value in file.items() if name != "plain"}, **file.get("plain", {})}
        for file in document["files"]
    ]
    return {name: value for name, value in document.items() if name not in {"encryption", "provenance"}} | {"files": files}
