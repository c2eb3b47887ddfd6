"""Ed25519 key pairs that sign records, using pynacl (the extra `remote`)."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from msgspec import Struct

from epbuild.core.errors import Problem, StoreError
from epbuild.recipe.remote_address import PUBLIC_KEY

_PUBLIC = "ed25519:"
_SECRET = "ed25519-secret:"  # noqa: S105 - the prefix of a secret key
_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")


class BadKey(ValueError):
    """Invalid signing key, with the reason and a hint. Neither contains the key's text, which may be a secret."""

    def __init__(self, message: str, hint: str) -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message}. {hint}")


class SigningKey(Struct, frozen=True):
    """Signing key with the public key that other users trust."""

    text: str
    """Secret key, in the format of the variable EPBUILD_SIGNING_KEY."""
    public: str

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public!r})"  # without the secret key

    @classmethod
    def generate(cls) -> SigningKey:
        """Return a new key pair."""
        return cls._of(bytes(_import_nacl().SigningKey.generate()))

    @classmethod
    def parse(cls, text: str) -> SigningKey:
        """Return the key pair of a secret key. Raises BadKey."""
        form = "Create a key pair with `epbuild cache key`, and set EPBUILD_SIGNING_KEY to the secret key."
        if text.startswith(_PUBLIC):
            raise BadKey(
                "EPBUILD_SIGNING_KEY contains a public key", "Set it to the secret key, which begins with 'ed25519-secret:'."
            )
        if not text.startswith(_SECRET) or not _KEY.fullmatch(text.removeprefix(_SECRET)):
            raise BadKey("EPBUILD_SIGNING_KEY does not contain a signing key", form)
        return cls._of(base64.b64decode(text.removeprefix(_SECRET)))

    @classmethod
    def _of(cls, seed: bytes) -> SigningKey:
        public = bytes(_import_nacl().SigningKey(seed).verify_key)
        return cls(_SECRET + _encode(seed), _PUBLIC + _encode(public))

    def sign(self, data: bytes) -> str:
        """Return the signature of `data`, in Base64."""
        seed = base64.b64decode(self.text.removeprefix(_SECRET))
        return _encode(_import_nacl().SigningKey(seed).sign(data).signature)


def is_signed(data: bytes, signature: str, public: str) -> bool:
    """Return whether `signature` is a valid signature of `data` by the key `public`."""
    nacl = _import_nacl()
    from nacl.exceptions import CryptoError

    if not PUBLIC_KEY.fullmatch(public):
        return False
    try:
        key = nacl.VerifyKey(base64.b64decode(public.removeprefix(_PUBLIC)))
        key.verify(data, base64.b64decode(signature, validate=True))
    except (CryptoError, binascii.Error, ValueError):
        return False
    return True


def require_signing() -> None:
    """Raise StoreError if pynacl is not installed, because records cannot be signed or verified without it."""
    _import_nacl()


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _import_nacl() -> Any:
    try:
        from nacl import signing
    except ImportError as error:
        message = "remote caches need the package pynacl, which is not installed in epbuild's environment"
        raise StoreError(Problem("EPB512", message, hint="Install it: pip install 'epbuild[remote]'.")) from error
    return signing
