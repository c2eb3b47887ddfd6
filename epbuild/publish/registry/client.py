"""Client that pushes images (OCI distribution specification 1.1).

Existing blobs are not uploaded again. Authentication follows Docker's token specification: either Basic, or a token from the server that
the registry names.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlencode, urlsplit

from msgspec import Struct

from epbuild.archive.artifact import Artifact, Copy
from epbuild.archive.oci import Document, Image
from epbuild.archive.oci_layout import MANIFEST_TYPE
from epbuild.core.digest import Count, RestartableCount, Write
from epbuild.core.errors import EnvironmentFailure, Problem, StepId
from epbuild.publish.registry.credentials import PASSWORD, REGISTRY, USER, Credentials, CredentialsError, find_credentials
from epbuild.recipe.image_reference import LOOPBACK, ImageReference
from epbuild.transfer.connection import Body
from epbuild.transfer.http import Answer, HttpClient, get_origin, is_transient, parse_retry_after
from epbuild.transfer.objects import TransferError
from epbuild.transfer.retry import RetryPolicy, wait_for_retry

_CREATED = frozenset({200, 201, 204})
_OCTETS = "application/octet-stream"
_FORM = "application/x-www-form-urlencoded"
_PARAMETER = re.compile(r'([A-Za-z_]+)="((?:[^"\\]|\\.)*)"')
_TOKEN = re.compile(r"[\x21-\x7e]+")
_ASK = "Ask the registry's administrator."
_MAX_QUOTE = 200
_LOCAL = frozenset(host.strip("[]") for host in LOOPBACK)

_T = TypeVar("_T")


Counting = Callable[[int], AbstractContextManager[Count]]
"""Function that reports the progress of sending a number of bytes in a `with` block."""


class Pushed(Struct, frozen=True):
    """Result of a push: the image's digest, the number and size of uploaded blobs, and the number of existing blobs."""

    reference: ImageReference
    digest: str
    sent: int
    sent_bytes: int
    there: int


def push(
    image: Image,
    reference: ImageReference,
    copy: Copy,
    counting: Counting,
    *,
    step: StepId | None = None,
    cancelled: threading.Event | None = None,
    retry: RetryPolicy | None = None,
) -> Pushed:
    """Push an image's blobs, then its manifest, and then its tag. The tag moves only after all other parts exist.

    Raises EnvironmentFailure if the registry cannot be reached or refuses the image (EPB426), or if this user may not push (EPB427). Raises
    Cancelled when `cancelled` is set, and errors of `copy`.
    """
    local = _LOCAL if reference.is_local else ()
    client = HttpClient(local=local, upgrades=True, address_hint="Check the reference.", cancelled=cancelled)
    try:
        return _Push(image, reference, copy, counting, step, client, retry or RetryPolicy()).run()
    finally:
        client.close()


@dataclass
class _Push:
    image: Image
    reference: ImageReference
    copy: Copy
    counting: Counting
    step: StepId | None
    client: HttpClient
    retry: RetryPolicy

    def __post_init__(self) -> None:
        self._root = f"{'http' if self.reference.is_local else 'https'}://{self.reference.host}/v2/{self.reference.repository}"
        self._credentials: Credentials | None = None
        self._authorization: str | None = None

    def run(self) -> Pushed:
        blobs: tuple[Artifact | Document, ...] = (*self.image.blobs, self.image.config)
        missing = [blob for blob in blobs if not self._has_blob(blob)]
        size = sum(blob.size for blob in missing)
        with self.counting(size) as count:
            for blob in missing:
                self._retry(partial(self._upload, blob, RestartableCount(count)))
        self._put_manifest(self.image.digest)
        self._put_manifest(self.reference.tag)
        return Pushed(self.reference, self.image.digest, len(missing), size, len(blobs) - len(missing))

    def _has_blob(self, blob: Artifact | Document) -> bool:
        found = self._retry(lambda: self._request("HEAD", f"{self._root}/blobs/sha256:{blob.sha256}"))
        if found.status not in (200, 404):
            self._raise_refusal("say whether it has a blob", found)
        return found.status == 200

    def _upload(self, blob: Artifact | Document, count: RestartableCount) -> None:
        """Upload a blob in one piece: POST opens the upload, and PUT sends all bytes ("Pushing a blob monolithically")."""
        opened = self._request("POST", f"{self._root}/blobs/uploads/")
        location = opened.headers.get("Location")
        if opened.status != 202 or location is None:
            self._raise_refusal("accept a blob", opened)
        place = self.client.resolve(opened.url, location)
        place += f"{'&' if urlsplit(place).query else '?'}{urlencode({'digest': f'sha256:{blob.sha256}'})}"
        done = self._request("PUT", place, Body(blob.size, _OCTETS, partial(self._send_blob, blob, count)))
        if done.status not in _CREATED:
            self._raise_refusal(f"accept the blob {blob.sha256[:12]} of {blob.size} bytes", done)

    def _send_blob(self, blob: Artifact | Document, count: RestartableCount, write: Write) -> None:
        def write_counted(data: memoryview) -> None:
            write(data)
            count(data.nbytes)

        count.restart()
        if isinstance(blob, Document):
            write_counted(memoryview(blob.data))
        else:
            self.copy(blob, write_counted)

    def _put_manifest(self, name: str) -> None:
        """Upload the manifest under `name` unless it exists there, because some registries reject an existing tag."""
        url = f"{self._root}/manifests/{name}"
        manifest, digest = self.image.manifest, self.image.digest
        existing = self._retry(lambda: self._request("HEAD", url, accept=MANIFEST_TYPE))
        if existing.status == 200 and existing.headers.get("Docker-Content-Digest") == digest:
            return
        body = Body(manifest.size, MANIFEST_TYPE, lambda write: write(memoryview(manifest.data)))
        response = self._retry(lambda: self._request("PUT", url, body))
        if response.status not in _CREATED:
            self._raise_refusal(f"accept the manifest as {name}", response)
        if response.headers.get("Docker-Content-Digest", digest) != digest:
            self._fail("EPB426", "stored a manifest other than the one that was sent", _ASK)

    def _retry(self, action: Callable[[], _T]) -> _T:
        try:
            return self.retry.call(action, partial(wait_for_retry, self.client.cancelled))
        except TransferError as failure:
            self._fail("EPB426", f"cannot be pushed to: {failure}", failure.hint)

    def _request(self, method: str, url: str, body: Body | None = None, *, accept: str = "*/*") -> Answer:
        """Send a request, and repeat it with credentials if the registry requires them. Raises TransferError and EnvironmentFailure."""
        answer = self._send_once(method, url, body, accept)
        if answer.status == 401:
            self._sign_in(answer)
            answer = self._send_once(method, url, body, accept)
        if answer.status in (401, 403):
            self._raise_denied(answer)
        return answer

    def _send_once(self, method: str, url: str, body: Body | None, accept: str) -> Answer:
        # An upload may go to another server. The address then contains the authorization.
        authorization = self._authorization if get_origin(url) == get_origin(self._root) else None
        return _check_status(self.client.send(method, url, headers={"Accept": accept}, authorization=authorization, body=body))

    def _sign_in(self, answer: Answer) -> None:
        if get_origin(answer.url) != get_origin(self._root):
            self._raise_denied(answer)  # credentials are never sent to another server
        offered = dict(_parse_challenge(text) for text in reversed(answer.headers.getlist("WWW-Authenticate")))
        try:
            self._credentials = self._credentials or find_credentials(self.reference.host)
        except CredentialsError as error:
            self._fail("EPB427", f"requires authentication, but {error.message}", error.hint)
        if "bearer" in offered:
            self._authorization = f"Bearer {self._request_token(answer, offered['bearer'])}"
        elif "basic" in offered and self._credentials is not None and not self._credentials.is_identity:
            self._authorization = self._credentials.basic
        else:
            self._raise_denied(answer)

    def _request_token(self, answer: Answer, challenge: dict[str, str]) -> str:
        if not challenge.get("realm"):
            self._raise_denied(answer)
        realm = self.client.resolve(answer.url, challenge["realm"])
        # The challenge of a HEAD request names only the scope `pull`.
        scope = f"repository:{self.reference.repository}:pull,push"
        wanted = {**({"service": challenge["service"]} if "service" in challenge else {}), "scope": scope}
        known, accept = self._credentials, {"Accept": "application/json"}
        url = realm
        try:
            if known is not None and known.is_identity:
                # https://distribution.github.io/distribution/spec/auth/oauth/
                form = {"grant_type": "refresh_token", "client_id": "epbuild", **wanted, "refresh_token": known.password}
                data = urlencode(form).encode()
                body = Body(len(data), _FORM, lambda write: write(memoryview(data)), is_secret=True)
                reply = _check_status(self.client.send("POST", url, headers=accept, body=body))
            else:
                url = f"{realm}{'&' if urlsplit(realm).query else '?'}{urlencode(wanted)}"
                basic = known.basic if known is not None else None
                reply = _check_status(self.client.send("GET", url, headers=accept, authorization=basic))
        except TransferError as failure:
            message = f"its token server {get_origin(url)[1]} failed: {failure}"
            raise TransferError(message, failure.hint, failure.kind, pause=failure.pause) from failure
        if reply.status in (401, 403):
            self._raise_denied(reply)
        document = _parse_json(reply) if reply.status == 200 else None
        token = (document.get("token") or document.get("access_token")) if isinstance(document, dict) else None
        if reply.status != 200:
            self._raise_refusal("issue a token", reply)
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            self._fail("EPB426", "issued an invalid token", _ASK)
        return token

    def _raise_denied(self, answer: Answer) -> NoReturn:
        repository, known = self.reference.repository, self._credentials
        if known is not None:
            message = f"does not allow the user from {known.source} to push to {repository} ({_summarize(answer)})"
            self._fail("EPB427", message, "Check the user, the password and the permissions of this user.")
        message = f"requires a user and a password to push to {repository} ({_summarize(answer)})"
        self._fail("EPB427", message, f"Set {REGISTRY}, {USER} and {PASSWORD}, or sign in with 'docker login'.")

    def _raise_refusal(self, what: str, answer: Answer) -> NoReturn:
        host, repository = self.reference.host, self.reference.repository
        hint = _ASK
        if answer.status == 404:
            hint = f"Check that {host} is a registry, and whether {repository} must be created there first."
        self._fail("EPB426", f"refused to {what}: {_summarize(answer)}", hint)

    def _fail(self, code: str, what: str, hint: str) -> NoReturn:
        """Raise EnvironmentFailure with a message about the registry."""
        raise EnvironmentFailure(Problem(code, f"the registry {self.reference.host} {what}", self.step, hint))


def _check_status(answer: Answer) -> Answer:
    """Raise TransferError if the status of an answer is transient. Otherwise, return the answer."""
    if is_transient(answer.status):
        raise TransferError(f"it answered {_summarize(answer)}", "Run again later.", pause=parse_retry_after(answer.headers))
    return answer


def _parse_challenge(text: str) -> tuple[str, dict[str, str]]:
    """Return the scheme and the parameters of the first challenge in a `WWW-Authenticate` header (RFC 9110)."""
    scheme, _, rest = text.strip().partition(" ")
    return scheme.lower(), {name.lower(): value for name, value in reversed(_PARAMETER.findall(rest))}


def _parse_json(answer: Answer) -> Any:
    try:
        return json.loads(answer.data)
    except (ValueError, RecursionError):
        return None


def _summarize(answer: Answer) -> str:
    """Return the status and the reason of an answer. The reason is taken from the registry's JSON error if there is one."""
    document = _parse_json(answer)
    errors: Collection[Any] = document.get("errors") or () if isinstance(document, dict) else ()
    first = next(iter(errors), None) if isinstance(errors, list) else None
    reason = first.get("message") or first.get("code") if isinstance(first, dict) else None
    text = f"{answer.status} {reason if isinstance(reason, str) else answer.reason}".strip()
    return "".join(character for character in text if character.isprintable())[:_MAX_QUOTE].rstrip(".")
