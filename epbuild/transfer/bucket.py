"""Objects in S3, Google Cloud Storage or Azure, through obstore (extra `remote`).

Credentials, regions and endpoints come from the environment variables that each cloud's own tools use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from epbuild.transfer.http import is_transient
from epbuild.transfer.objects import (
    Content,
    Download,
    FailureKind,
    MissingObjectError,
    MissingPackageError,
    Timeouts,
    TransferError,
)

_CHUNK_BYTES = 1 << 20
_PART_BYTES = 5 << 20
_MAX_PARTS = 9000  # S3 accepts 10,000
_MAX_ANSWER_SECONDS = 7 * 24 * 3600
_STATUS = re.compile(r"non-2xx status code: (\d{3}[^:|\n]*)")
_TIMED_OUT = re.compile(r"timed ?out", re.IGNORECASE)
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
# obstore's messages for an answer that is not the requested range, such as status 200 with the whole object.
_NO_RANGES = re.compile(r"\b(NotPartial|NoContentRange)\b|non-partial response|Content-Range header not present")
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION; for a public bucket AWS_SKIP_SIGNATURE=true",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS; for a public bucket GOOGLE_SKIP_SIGNATURE=true",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; for a public container AZURE_SKIP_SIGNATURE=true",
}


class BucketStore:
    """Store of the objects below `prefix` in a bucket. If `access_hint` is set, requests are not signed, and errors contain the hint.

    Raises MissingPackageError, and TransferError if an environment variable that the cloud provider requires is missing or invalid.
    """

    def __init__(
        self, scheme: str, bucket: str, prefix: str = "", timeouts: Timeouts | None = None, *, access_hint: str | None = None
    ) -> None:
        self._access = access_hint or _VARIABLES[scheme]
        self._bucket = _open_bucket(scheme, bucket, prefix, timeouts or Timeouts(), is_signed=access_hint is None)

    def get(self, path: str, start: int = 0, version: str | None = None) -> Download:
        if start and version is not None:
            try:
                return self._get(path, start, {"range": {"offset": start}, "if_match": version})
            except TransferError as error:
                if error.kind != "object":
                    raise
                # The object was replaced, or the server does not support ranges: read the object from its beginning.
        return self._get(path, 0, {})

    def has(self, path: str, size: int) -> bool:
        import obstore

        try:
            with self.translate_errors():
                return bool(obstore.head(self._bucket, path)["size"] == size)
        except MissingObjectError:
            return False

    def put(self, path: str, content: Content) -> None:
        import obstore

        # Pieces are copied, as obstore may still use a piece when its buffer is overwritten by the next one.
        pieces = (bytes(piece) for piece in content.pieces())
        with self.translate_errors():
            if content.size <= _PART_BYTES:
                obstore.put(self._bucket, path, b"".join(pieces), use_multipart=False)
            else:
                part = max(_PART_BYTES, -(-content.size // _MAX_PARTS))
                obstore.put(self._bucket, path, pieces, chunk_size=part, max_concurrency=4)

    def close(self) -> None:
        pass

    def _get(self, path: str, start: int, options: Mapping[str, Any]) -> Download:
        import obstore

        with self.translate_errors():
            return _BucketDownload(obstore.get(self._bucket, path, options=options), start, self)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate errors that obstore raises in the `with` block into TransferError."""
        from obstore import exceptions

        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            raise self._make_error(error) from error

    def _make_error(self, error: Exception) -> TransferError:
        from obstore import exceptions

        text, hint = str(error), f"Check {self._access}."
        if _NO_BUCKET.search(text):
            return TransferError("the bucket does not exist", "Check the address.", "denied")
        if isinstance(error, exceptions.NotFoundError | FileNotFoundError):
            return MissingObjectError("the object does not exist")
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError):
            return TransferError("the server denies access", hint, "denied")
        if isinstance(error, exceptions.PreconditionError):
            return TransferError("the object was replaced", hint, "object")
        if _NO_RANGES.search(text):
            return TransferError("the server does not support reading a part of an object", hint, "object")
        if status := _STATUS.search(text):
            kind: FailureKind = "transient" if is_transient(int(status[1][:3])) else "object"
            return TransferError(f"the server responded with {status[1].strip()}", hint, kind)
        if _TIMED_OUT.search(text):
            return TransferError("the server sent no data for too long", kind="timeout")
        if isinstance(error, exceptions.GenericError):
            return TransferError(_extract_summary(error), f"Check the network, and {self._access}.")
        return TransferError(_extract_summary(error), hint, "object")


class _BucketDownload(Download):
    def __init__(self, answer: Any, start: int, store: BucketStore) -> None:
        self.start = start
        self.size = int(answer.meta["size"])
        self.version = answer.meta["e_tag"]
        self._pieces = iter(answer.stream(min_chunk_size=_CHUNK_BYTES))
        self._store = store
        self._rest = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        while not self._rest:
            with self._store.translate_errors():
                piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _open_bucket(scheme: str, bucket: str, prefix: str, timeouts: Timeouts, *, is_signed: bool) -> Any:
    try:
        from obstore import exceptions, store
    except ImportError as error:
        raise MissingPackageError("obstore", "remote") from error
    kind = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
    # Not passed as `client_options`, which would override settings from the environment such as AWS_ALLOW_HTTP.
    config = {
        "timeout": f"{_MAX_ANSWER_SECONDS}s",
        "read_timeout": f"{timeouts.idle}s",
        "connect_timeout": f"{timeouts.connect}s",
    }
    if not is_signed:
        config["skip_signature"] = "true"
    # obstore does not retry, as `RetryPolicy` does, which can be cancelled.
    retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
    try:
        return kind(bucket, prefix=prefix or None, config=config, retry_config=retries)
    except (exceptions.BaseError, ValueError) as error:  # no request was sent yet: a variable is missing or wrong
        raise TransferError(_extract_summary(error), f"Set {_VARIABLES[scheme]}.", "denied") from error


def _extract_summary(error: Exception) -> str:
    """Return the first line of an obstore error, without debug output and without the address."""
    line = re.split(r"\s*\n", str(error).strip())[0].rstrip(".")
    return line.rpartition(" - ")[2]
