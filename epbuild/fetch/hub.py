"""Files in repositories of the Hugging Face Hub, by huggingface_hub (extra `hf`).

The endpoint and the token are the ones that it takes from its environment; a file is downloaded like any other.
"""

from __future__ import annotations

import re
from dataclasses import replace

from epbuild.core.http import HttpClient, Unreachable, may_pass
from epbuild.fetch.transfer import MissingPackage, Reply
from epbuild.fetch.web import WebSource
from epbuild.recipe.address import HubAddress

_SHA256 = re.compile(r"[0-9a-f]{64}")


class HubSource:
    """The file at `address`. A branch is resolved to its commit once, so that all pieces are of one version."""

    def __init__(self, address: HubAddress, client: HttpClient) -> None:
        self._address = address
        self._client = client
        self._found: tuple[WebSource, str | None] | None = None

    def open(self, start: int, validator: str | None) -> Reply:
        self._found = self._found or self._find()
        source, sha256 = self._found
        return replace(source.open(start, validator), sha256=sha256)

    def _find(self) -> tuple[WebSource, str | None]:
        try:
            import huggingface_hub
            from huggingface_hub import errors, utils
        except ImportError as error:
            raise MissingPackage("huggingface_hub", "hf") from error
        address = self._address
        try:
            url = huggingface_hub.hf_hub_url(address.repository, address.file, revision=address.revision)
            found = huggingface_hub.get_hf_file_metadata(url)
            commit = found.commit_hash or address.revision
            url = huggingface_hub.hf_hub_url(address.repository, address.file, revision=commit)
            headers = utils.build_hf_headers()
        except errors.HfHubHTTPError as error:
            raise _answered(error) from error
        except errors.OfflineModeIsEnabled as error:
            raise Unreachable("the hub's client is set to stay offline", "Unset HF_HUB_OFFLINE.", may_pass=False) from error
        except ValueError as error:
            raise Unreachable(str(error), "Check the address.", may_pass=False) from error
        except Exception as error:  # its HTTP library, and with that what it raises, differs between versions
            raise Unreachable(str(error) or type(error).__name__, may_pass=True) from error
        if not url.startswith("https://"):
            message = f"the hub is at an address that is not https, {url}"
            raise Unreachable(message, "Set HF_ENDPOINT to an address with https.", may_pass=False)
        # Large files carry their SHA-256 as ETag, small ones a SHA-1 of git's.
        sha256 = found.etag if found.etag and _SHA256.fullmatch(found.etag) else None
        return WebSource(url, self._client, headers), sha256


def _answered(error: Exception) -> Unreachable:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None and may_pass(status):
        return Unreachable(f"the hub answered {status}", may_pass=True)
    # Its messages begin with a line for a log, and go on with a paragraph of advice.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "Request ID" not in line), f"the hub answered {status}")
    hint = "Check the address; a private or gated repository needs a token in HF_TOKEN."
    return Unreachable(reason.rstrip("."), hint, may_pass=False)
