"""Key pairs: only the public key of a pair verifies its signatures, and messages show no secret."""

from __future__ import annotations

import sys

import pytest

from epbuild.core.errors import StoreError
from epbuild.recipe.remote_address import PUBLIC_KEY
from epbuild.remote.keys import BadKey, SigningKey, is_signed, require_signing


def test_key_pair_is_parsed_from_its_secret() -> None:
    pair = SigningKey.generate()
    assert SigningKey.parse(pair.text) == pair
    assert PUBLIC_KEY.fullmatch(pair.public)
    assert SigningKey.generate() != pair


def test_only_the_public_key_of_the_signer_verifies_a_signature() -> None:
    pair, other = SigningKey.generate(), SigningKey.generate()
    signature = pair.sign(b"text")
    assert is_signed(b"text", signature, pair.public)
    assert not is_signed(b"text!", signature, pair.public)
    assert not is_signed(b"text", signature, other.public)
    assert not is_signed(b"text", other.sign(b"text"), pair.public)


@pytest.mark.parametrize("signature", ["", "!", "AAAA", "A" * 88, "é"])
@pytest.mark.parametrize("public", ["", "ed25519:", f"ed25519:{'A' * 43}=", f"ed25519:{'/' * 43}=", "rsa:x"])
def test_odd_keys_and_signatures_verify_nothing(signature: str, public: str) -> None:
    assert not is_signed(b"text", signature, public)


def test_key_of_small_order_verifies_nothing() -> None:
    """Check this because one signature under such a key would be valid for every text."""
    neutral = "ed25519:AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    signature = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="
    assert not is_signed(b"text", signature, neutral)


@pytest.mark.parametrize("text", ["", "secret", "ed25519-secret:", f"ed25519-secret:{'A' * 42}", "ed25519-secret:secret"])
def test_invalid_signing_key_is_not_shown(text: str) -> None:
    with pytest.raises(BadKey, match="epbuild cache key") as refused:
        SigningKey.parse(text)
    assert "secret:" not in str(refused.value)


def test_public_key_in_place_of_the_secret_is_detected() -> None:
    with pytest.raises(BadKey, match="a public key"):
        SigningKey.parse(SigningKey.generate().public)


def test_secret_key_is_hidden_in_repr() -> None:
    pair = SigningKey.generate()
    assert pair.text not in repr(pair)


def test_missing_pynacl_is_reported_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nacl", None)
    with pytest.raises(StoreError, match=r"pip install 'epbuild\[remote\]'"):
        require_signing()
