"""Decryption of a variant's files, only in memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .contents import Contents
from .encryption import EncryptionError, Header, check_key, decrypt, parse_key
from .variants import OpenError, Variant, format_path

if TYPE_CHECKING:
    from onnxruntime import SessionOptions


def read_key(given: object) -> bytes | None:
    """Return the key in the argument `decrypt`. Raises OpenError (EPB654), which does not quote the argument."""
    if given is None:
        return None
    try:
        if isinstance(given, str):
            return parse_key(given)
        if isinstance(given, (bytes, bytearray)):
            return check_key(bytes(given))
    except EncryptionError as error:
        raise OpenError("EPB654", f"decrypt must be a key: it {error}") from None
    raise OpenError("EPB654", f"decrypt must be a key as bytes, hex or Base64, not {type(given).__name__}")


class Decryption:
    """Reader of a variant's encrypted files, which may be in memory. Raises OpenError (EPB658) for files that cannot be decrypted."""

    def __init__(self, variant: Variant, contents: Contents, key: bytes | None) -> None:
        self._encrypted = variant.encrypted
        self._contents = contents
        self._failure: OpenError | None = None
        if self._encrypted and key is None:
            file = next(iter(self._encrypted))
            named = f" with the key {variant.key_id!r}" if variant.key_id is not None else ""
            raise OpenError("EPB658", f"{format_path(file)} was encrypted{named}; pass the key as decrypt=")
        self._key = key or b""
        self._contexts = {file.resolve(): file for file in self._encrypted if file not in variant.models.values()}

    def __contains__(self, file: Path) -> bool:
        return file in self._encrypted

    def read(self, file: Path) -> bytes:
        """Return the content of a file."""
        content = io.BytesIO()
        with self._open(file) as (_, pieces):
            for piece in pieces:
                content.write(piece)
        return content.getvalue()

    def register(self, options: SessionOptions, model: Path) -> None:
        """Let ONNX Runtime read the encrypted context binaries of a model through a callback."""
        if not self._contexts:
            return
        if not hasattr(options, "set_ep_context_data_read_func"):
            raise OpenError("EPB658", "this onnxruntime cannot read encrypted context binaries; install a newer one")

        def read(name: str, output: Any) -> None:
            try:
                self._pass_context(model.parent / name, output)
            except OpenError as error:
                self._failure = error  # ONNX Runtime raises its own error
                raise

        options.set_ep_context_data_read_func(read, max(map(self._get_size, self._contexts.values())))

    def raise_failure(self) -> None:
        """Raise the error of the callback, if it had one."""
        if self._failure is not None:
            raise self._failure

    def _pass_context(self, path: Path, output: Any) -> None:
        file = self._contexts.get(path.resolve())
        if file is None:
            raise OpenError("EPB658", f"the EP asks for {format_path(path)}, which is not an encrypted file of the manifest")
        with self._open(file) as (header, pieces):
            output.allocate(header.size)
            start = 0
            for piece in pieces:
                output.write(piece, start)
                start += len(piece)

    def _get_size(self, file: Path) -> int:
        with self._open(file) as (header, _):
            return max(1, header.size)  # ONNX Runtime rejects a limit of 0

    @contextmanager
    def _open(self, file: Path) -> Iterator[tuple[Header, Iterator[bytes]]]:
        try:
            with self._open_file(file) as source:
                yield decrypt(source, self._key, *self._encrypted[file])
        except EncryptionError as error:
            raise OpenError("EPB658", f"{format_path(file)} cannot be decrypted: it {error}") from None
        except OSError as error:
            raise OpenError("EPB658", f"{format_path(file)} cannot be read: {error.strerror or error}") from error

    def _open_file(self, file: Path) -> BinaryIO:
        return io.BytesIO(self._contents[file]) if file in self._contents else file.open("rb")
