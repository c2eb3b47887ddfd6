"""Objects in S3, Google Cloud Storage and Azure, by obstore (extra `remote`).

Credentials, regions and endpoints come from the environment, by the names that each cloud's own tools use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from epbuild.core.http import Unreachable
from epbuild.fetch.transfer import MissingPackage, Reply
from epbuild.recipe.address import ObjectAddress

_CHUNK_BYTES = 4 * 1024 * 1024
_TIMEOUT_SECONDS = 60
_LONGEST_STREAM_SECONDS = 7 * 24 * 3600
# What obstore makes of an answer that is not the range that was asked for, such as 200 with the whole object.
_NO_RANGES = re.compile(r"\b(NotPartial|NoContentRange)\b|non-partial response|Content-Range header not present")
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION; for a public bucket AWS_SKIP_SIGNATURE=true",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS; for a public bucket GOOGLE_SKIP_SIGNATURE=true",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; for a public container AZURE_SKIP_SIGNATURE=true",
}


class ObjectSource:
    """The object at `address`; `bucket` is obstore's store for the bucket that it is in, made on first use."""

    def __init__(self, address: ObjectAddress, bucket: Any = None) -> None:
        self._address = address
        self._bucket = bucket

    def open(self, start: int, validator: str | None) -> Reply:
        try:
            import obstore
            from obstore import exceptions
        except ImportError as error:
            raise MissingPackage("obstore", "remote") from error
        try:
            self._bucket = self._bucket or self._open_bucket()
            found = obstore.head(self._bucket, self._address.file)
        except (exceptions.BaseError, OSError) as error:
            raise self._explained(error) from error
        version, size = found["e_tag"], found["size"]
        begin = start if validator == version and start <= size else 0
        return Reply(begin, size, version, self._chunks(begin, size, version))

    def _chunks(self, at: int, size: int, version: str | None) -> Iterator[bytes]:
        import obstore
        from obstore import exceptions

        while at < size:
            # Whole ranges, each of this version only: an object that is replaced meanwhile is noticed, not mixed in.
            options = {"range": (at, min(at + _CHUNK_BYTES, size)), "if_match": version}
            try:
                chunk = bytes(obstore.get(self._bucket, self._address.file, options=options).bytes())
            except (exceptions.BaseError, OSError) as error:
                if not _NO_RANGES.search(str(error)):
                    raise self._explained(error) from error
                yield from self._stream(at, version)
                return
            at += len(chunk)
            yield chunk

    def _stream(self, start: int, version: str | None) -> Iterator[bytes]:
        """The object in one answer, less its first `start` bytes, from a server that gives no parts of it."""
        import obstore
        from obstore import exceptions

        try:
            bucket = self._open_bucket(_LONGEST_STREAM_SECONDS)
            answer = obstore.get(bucket, self._address.file, options={"if_match": version})
            at = 0
            for buffer in answer.stream(min_chunk_size=_CHUNK_BYTES):
                chunk = bytes(buffer)
                at += len(chunk)
                if at > start:
                    yield chunk[-(at - start) :]  # all of it, once what is to be left out is over
        except (exceptions.BaseError, OSError) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Unreachable:
        from obstore import exceptions

        if isinstance(error, exceptions.PreconditionError):
            return Unreachable("the object was replaced while it was read", may_pass=True)
        if isinstance(error, exceptions.NotFoundError | FileNotFoundError):
            return Unreachable("there is no such object", "Check the address.", may_pass=False)
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError):
            return Unreachable("the server refuses access", f"Check {self._variables}.", may_pass=False)
        if _NO_RANGES.search(str(error)):  # what was tried after the line was cut
            return Unreachable("the line was cut, and the server gives no part of an object", may_pass=True)
        if isinstance(error, exceptions.GenericError):
            return Unreachable(_first_line(error), f"Check the network, and {self._variables}; then run again.", may_pass=True)
        return Unreachable(_first_line(error), f"Check {self._variables}.", may_pass=False)

    @property
    def _variables(self) -> str:
        return _VARIABLES[self._address.scheme]

    def _open_bucket(self, timeout: int = _TIMEOUT_SECONDS) -> Any:
        """The store for the bucket; `timeout` is in seconds, for a whole answer."""
        from obstore import exceptions, store

        kind = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[self._address.scheme]
        try:
            # The caller tries again itself, where it can be cancelled.
            return kind(
                self._address.bucket,
                # Not as `client_options`: those replace what the environment has, such as AWS_ALLOW_HTTP.
                config={"timeout": f"{timeout}s", "read_timeout": f"{_TIMEOUT_SECONDS}s", "connect_timeout": "15s"},
                retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=_TIMEOUT_SECONDS)},
            )
        except (exceptions.BaseError, ValueError) as error:
            # Nothing was asked of the network yet: what the environment has is wrong or not enough.
            raise Unreachable(_first_line(error), f"Set {self._variables}.", may_pass=False) from error


def _first_line(error: Exception) -> str:
    """What obstore reports, without the error as Rust writes it for debugging."""
    return re.split(r"\s*\n", str(error).strip())[0].rstrip(".")
