"""Files on the Hugging Face Hub, using huggingface_hub (the extra `hf`).

The endpoint and the token come from the environment variables of that package. Files are downloaded like other web files.
"""

from __future__ import annotations

import re

from epbuild.recipe.address import HubAddress
from epbuild.transfer.http import HttpClient, is_transient
from epbuild.transfer.objects import Download, MissingPackageError, TransferError
from epbuild.transfer.web import WebFile

_SHA256 = re.compile(r"[0-9a-f]{64}")


class HubFile:
    """File at `address`. A branch is resolved to a commit only once, so that a resumed download continues the same version."""

    def __init__(self, address: HubAddress, client: HttpClient) -> None:
        self._address = address
        self._client = client
        self._found: tuple[WebFile, str | None] | None = None

    def open(self, start: int, version: str | None) -> Download:
        """Open the file at offset `start` if its version is still `version`, or else at its beginning."""
        self._found = self._found or self._find()
        file, sha256 = self._found
        download = file.open(start, version)
        download.sha256 = sha256
        return download

    def _find(self) -> tuple[WebFile, str | None]:
        try:
            import huggingface_hub
            from huggingface_hub import errors, utils
        except ImportError as error:
            raise MissingPackageError("huggingface_hub", "hf") from error
        address = self._address
        try:
            url = huggingface_hub.hf_hub_url(address.repository, address.file, revision=address.revision)
            found = huggingface_hub.get_hf_file_metadata(url)
            commit = found.commit_hash or address.revision
            url = huggingface_hub.hf_hub_url(address.repository, address.file, revision=commit)
            headers = utils.build_hf_headers()
        except errors.HfHubHTTPError as error:
            raise _make_hub_error(error) from error
        except errors.OfflineModeIsEnabled as error:
            raise TransferError("the hub's client is set to offline mode", "Unset HF_HUB_OFFLINE.", "denied") from error
        except ValueError as error:
            raise TransferError(str(error), "Check the address.", "object") from error
        except Exception as error:  # huggingface_hub's HTTP library, and so the errors, differ between versions
            raise TransferError(str(error) or type(error).__name__) from error
        if not url.startswith("https://"):
            message = f"the address of the hub does not use https: {url}"
            raise TransferError(message, "Set HF_ENDPOINT to an https address.", "denied")
        # The ETag is the SHA-256 of a large file, but git's SHA-1 of a small file.
        sha256 = found.etag if found.etag and _SHA256.fullmatch(found.etag) else None
        # The token is sent only to the hub. Other headers are also sent to servers that the hub redirects to.
        sent = {name.lower(): value for name, value in headers.items()}
        authorization = sent.pop("authorization", None)
        return WebFile(self._client, url, sent, authorization), sha256


def _make_hub_error(error: Exception) -> TransferError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None and is_transient(status):
        return TransferError(f"the hub responded with status {status}")
    # The message begins with a log line, and ends with a paragraph of advice.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "Request ID" not in line), f"the hub responded with status {status}")
    hint = "Check the address; a private or gated repository needs a token in HF_TOKEN."
    return TransferError(reason.rstrip("."), hint, "object")
