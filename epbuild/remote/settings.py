"""Settings of the remote cache from command line, environment, recipe and user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from epbuild.core.errors import Location, Position, Problem, RecipeError
from epbuild.core.user_folders import find_settings_file
from epbuild.core.user_settings import read_user_settings
from epbuild.recipe.address import BadAddress
from epbuild.recipe.remote_address import PUBLIC_KEY, CacheChoice, RemoteAddress, parse_remote
from epbuild.remote.keys import BadKey, SigningKey

REMOTE = "EPBUILD_REMOTE_CACHE"
SIGNING_KEY = "EPBUILD_SIGNING_KEY"
AUTHORIZATION = "EPBUILD_REMOTE_AUTHORIZATION"

Mode = Literal["off", "read", "write"]
"""Use of a remote cache. `write` includes reading."""

_OFF = "off"


class RemoteSettings(Struct, frozen=True):
    """Settings of a remote cache: its address, the trusted keys (None: any), and the signing key."""

    address: RemoteAddress
    """Address of the remote cache. A directory has an absolute path."""
    trust: frozenset[str] | None
    signer: SigningKey | None = None
    authorization: str | None = None
    anonymous: bool = False
    """True if this machine's credentials are withheld, because the address comes from a recipe, which may be untrusted."""
    uploads_inputs: bool = False
    """True if inputs are uploaded for other machines."""

    def __repr__(self) -> str:
        return f"RemoteSettings({str(self.address)!r})"  # `authorization` is a secret


def resolve_remote_settings(
    cache: CacheChoice | None,
    folder: Path,
    environment: Mapping[str, str],
    mode: Mode = "read",
    *,
    insecure: bool = False,
    user: CacheChoice | None = None,
) -> RemoteSettings | None:
    """Return the settings of the remote cache for a recipe in `folder`. Return None if there is none, or if it is disabled.

    EPBUILD_REMOTE_CACHE overrides the recipe's address, and its value `off` disables the remote cache. `user` has the user's own settings,
    which apply if neither names an address. Credentials are used only for an address of the user, never for an address from a recipe.
    Raises RecipeError: EPB275 if the address cannot be used, EPB276 if no key is trusted, and EPB277 if results cannot be signed.
    """
    if mode == "off":
        return None
    found = _find_address(cache, folder, environment, user)
    if found is None:
        if mode == "write":
            message = "results cannot be written, because no remote cache is configured"
            raise RecipeError(Problem("EPB275", message, hint=f"Set `cache.remote` in the recipe, or {REMOTE}."))
        return None
    address, where = found
    anonymous = cache is not None and where is cache.where
    if address.scheme == "http" and not address.is_local and not insecure:
        message = f"the remote cache {address} would be used without TLS"
        raise RecipeError(Problem("EPB275", message, where, "Use https://, or allow it with --insecure."))
    trust = frozenset(cache.trust) if cache is not None else frozenset[str]()
    if user is not None and where is user.where:
        trust |= frozenset(user.trust)
    if not trust and not address.is_directory:
        risk = "anyone who can write to it could change builds"
        message = f"the remote cache {address} cannot be used without a trusted key: {risk}"
        hint = "List the public keys of the machines whose results you trust under `cache.trust` in the recipe."
        raise RecipeError(Problem("EPB276", message, where, hint))
    signer = _require_signer(environment, trust, where) if mode == "write" else None
    is_web = address.scheme in ("http", "https") and not anonymous
    authorization = environment.get(AUTHORIZATION) if is_web else None
    return RemoteSettings(address, trust or None, signer, authorization or None, anonymous)


def read_signing_key(environment: Mapping[str, str]) -> SigningKey | None:
    """Return the key that signs results, or None if no key is set. Raises RecipeError (EPB277) for an invalid key."""
    text = environment.get(SIGNING_KEY, "").strip()
    try:
        return SigningKey.parse(text) if text else None
    except BadKey as error:
        raise RecipeError(Problem("EPB277", error.message, hint=error.hint)) from error


def read_user_cache() -> CacheChoice | None:
    """Return the remote cache in the user's settings, or None if there is none. Raises StoreError, and RecipeError (EPB275, EPB277)."""
    settings = read_user_settings()
    if "remote_cache" not in settings:
        return None
    file = Position(find_settings_file() or "", 1, 1)
    trust = tuple(settings.get("remote_trust", ()))
    if not all(map(PUBLIC_KEY.fullmatch, trust)):  # The message does not quote the key, because it may be a secret key.
        hint = "Write a public key of `epbuild cache key`: 'ed25519:' and 44 characters of Base64."
        raise RecipeError(Problem("EPB277", "invalid public key in `remote_trust`", Path(file.file), hint))
    try:
        return CacheChoice(file, parse_remote(settings["remote_cache"]), trust)
    except BadAddress as error:
        raise RecipeError(Problem("EPB275", f"`remote_cache`: {error.message}", Path(file.file), hint=error.hint)) from error


def _find_address(
    cache: CacheChoice | None, folder: Path, environment: Mapping[str, str], user: CacheChoice | None
) -> tuple[RemoteAddress, Location | None] | None:
    """Return the address of the remote cache and the place that names it. Return None if there is no remote cache.

    The place is None if the address comes from EPBUILD_REMOTE_CACHE. A path in that variable is relative to the current directory. A
    path in the recipe is relative to the recipe's folder.
    """
    text = environment.get(REMOTE, "")
    if text == _OFF:
        return None
    if text:
        try:
            return _make_absolute(parse_remote(text), Path.cwd()), None
        except BadAddress as error:
            raise RecipeError(Problem("EPB275", f"{REMOTE}: {error.message}", hint=error.hint)) from error
    if cache is not None and cache.remote is not None:
        return _make_absolute(cache.remote, folder.absolute()), cache.where
    return (user.remote, user.where) if user is not None and user.remote is not None else None


def _make_absolute(address: RemoteAddress, folder: Path) -> RemoteAddress:
    return RemoteAddress("directory", str(folder / address.text)) if address.is_directory else address


def _require_signer(environment: Mapping[str, str], trust: frozenset[str], where: Location | None) -> SigningKey:
    signer = read_signing_key(environment)
    if signer is None:
        message = "results cannot be written to the remote cache without a signing key"
        hint = f"Create a key with `epbuild cache key` and set {SIGNING_KEY} to it, or omit `--remote-cache write`."
        raise RecipeError(Problem("EPB277", message, hint=hint))
    if trust and signer.public not in trust:
        message = f"the public key of {SIGNING_KEY} is not trusted: {signer.public}"
        raise RecipeError(Problem("EPB277", message, where, "List it under `cache.trust` in the recipe."))
    return signer
