"""The remote cache in S3, Google Cloud Storage or Azure Blob Storage.

Through obstore (the extra `remote`). Credentials, regions and endpoints come from the environment, by the names that each cloud's own
tools use. obstore tries nothing again here: the caller counts what was tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from epbuild.core.errors import Problem, StoreError
from epbuild.core.http import may_pass
from epbuild.recipe.remote_address import RemoteAddress
from epbuild.remote.transport import Content, Download, Patience, RemoteError, Space, Trouble

_CHUNK_BYTES = 1 << 20
_PART_BYTES = 5 << 20
_MOST_PARTS = 9000  # S3 takes 10,000
_LONGEST_ANSWER_SECONDS = 7 * 24 * 3600
_STATUS = re.compile(r"non-2xx status code: (\d{3}[^:|\n]*)")
_TIMED_OUT = re.compile(r"timed ?out", re.IGNORECASE)
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION; for a public bucket AWS_SKIP_SIGNATURE=true",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS; for a public bucket GOOGLE_SKIP_SIGNATURE=true",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; for a public container AZURE_SKIP_SIGNATURE=true",
}
_WITHHELD = "EPBUILD_REMOTE_CACHE: credentials are used only for the bucket that it names"


class ObjectTransport:
    """The objects below the prefix of a bucket; an `anonymous` transport signs no request.

    Raises StoreError if obstore is not installed, or the environment does not serve.
    """

    def __init__(self, address: RemoteAddress, patience: Patience | None = None, *, anonymous: bool = False) -> None:
        wait = patience or Patience()
        self._variables = _VARIABLES[address.scheme] if not anonymous else _WITHHELD
        # Records are small: one that does not come at once has its server hang.
        self._buckets: Mapping[Space, Any] = {
            "ac": _bucket(address, wait.connect, wait.answer, anonymous=anonymous),
            "cas": _bucket(address, wait.connect, wait.idle, anonymous=anonymous),
        }

    def get(self, space: Space, name: str) -> Download | None:
        import obstore

        with self._explained():
            try:
                answer = obstore.get(self._buckets[space], f"{space}/{name}")
            except FileNotFoundError as error:
                self._check_bucket(error)
                return None
            return _ObjectDownload(answer, self)

    def has(self, space: Space, name: str, size: int) -> bool:
        import obstore

        with self._explained():
            try:
                return bool(obstore.head(self._buckets["ac"], f"{space}/{name}")["size"] == size)
            except FileNotFoundError as error:
                self._check_bucket(error)
                return False

    def put(self, space: Space, name: str, content: Content) -> None:
        import obstore

        # Not as they are: obstore may still hold one when the next takes its place.
        pieces = (bytes(piece) for piece in content.pieces())
        with self._explained():
            if content.size <= _PART_BYTES:
                obstore.put(self._buckets[space], f"{space}/{name}", b"".join(pieces), use_multipart=False)
            else:
                part = max(_PART_BYTES, -(-content.size // _MOST_PARTS))
                obstore.put(self._buckets[space], f"{space}/{name}", pieces, chunk_size=part, max_concurrency=4)

    def close(self) -> None:
        pass

    def _check_bucket(self, error: Exception) -> None:
        """An object is missing; where its bucket is, that is no answer."""
        if _NO_BUCKET.search(str(error)):
            raise RemoteError("there is no such bucket", "Check the address.", "refused") from error

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from obstore import exceptions

        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> RemoteError:
        """What an error of obstore's means."""
        from obstore import exceptions

        text = str(error)
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError):
            return RemoteError("the server refuses access", f"Check {self._variables}.", "refused")
        if status := _STATUS.search(text):
            passing = may_pass(int(status[1][:3]))
            trouble: Trouble = "passing" if passing else "object"
            return RemoteError(f"the server answered {status[1].strip()}", f"Check {self._variables}.", trouble)
        if _TIMED_OUT.search(text):
            return RemoteError("it sent nothing for too long", "Check the network.", "hung")
        if isinstance(error, exceptions.GenericError):
            return RemoteError(_first_of(text), f"Check the network, and {self._variables}.", "passing")
        return RemoteError(_first_of(text), f"Check {self._variables}.", "object")


class _ObjectDownload(Download):
    def __init__(self, answer: Any, transport: ObjectTransport) -> None:
        self.size = int(answer.meta["size"])
        self._pieces = iter(answer.stream(min_chunk_size=_CHUNK_BYTES))
        self._transport = transport
        self._rest = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        from obstore import exceptions

        while not self._rest:
            try:
                piece = next(self._pieces, None)
            except (exceptions.BaseError, OSError) as error:
                raise self._transport.failure(error) from error
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _bucket(address: RemoteAddress, connect: float, idle: float, *, anonymous: bool) -> Any:
    try:
        from obstore import exceptions, store
    except ImportError as error:
        message = f"the remote cache {address} needs the package obstore, which is not installed beside epbuild"
        raise StoreError(Problem("EPB512", message, hint="Install it: pip install 'epbuild[remote]'.")) from error
    kind = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[address.scheme]
    bucket, prefix = address.bucket
    # Not as `client_options`: those replace what the environment has, such as AWS_ALLOW_HTTP.
    config = {"timeout": f"{_LONGEST_ANSWER_SECONDS}s", "read_timeout": f"{idle}s", "connect_timeout": f"{connect}s"}
    if anonymous:
        config["skip_signature"] = "true"
    try:
        return kind(
            bucket, prefix=prefix or None, config=config, retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
        )
    except (exceptions.BaseError, ValueError) as error:
        # Nothing was asked of the network yet: what the environment has is wrong or not enough.
        message = f"the remote cache {address} cannot be used: {_first_of(str(error))}"
        raise StoreError(Problem("EPB520", message, hint=f"Set {_VARIABLES[address.scheme]}.")) from error


def _first_of(text: str) -> str:
    """What obstore reports, without the error as Rust writes it for debugging, and without the address."""
    line = re.split(r"\s*\n", text.strip())[0].rstrip(".")
    return line.rpartition(" - ")[2]
