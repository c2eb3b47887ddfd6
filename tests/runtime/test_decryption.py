"""`epbuild.runtime.open` with encrypted files: what ONNX Runtime gets, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epbuild import runtime
from epbuild.core.digest import hash_bytes
from epbuild.runtime import OpenError
from tests.runtime.fake_onnxruntime import Machine, SessionOptions
from tests.runtime.test_files_in_memory import CONTEXT
from tests.runtime.test_open_group import emit, machine, refused, snapdragon
from tests.support.encrypted_files import KEY, encrypted

__all__ = ["machine", "snapdragon"]

MODEL, BINARY = "relu_ctx.onnx", "relu_qnn.bin"


class Buffer:
    """Output of ONNX Runtime's callback."""

    def allocate(self, size: int) -> None:
        self.data = bytearray(size)

    def write(self, piece: bytes, offset: int) -> None:
        self.data[offset : offset + len(piece)] = piece


class WithCallback(SessionOptions):
    """Session options of an onnxruntime that reads context binaries through a callback."""

    def set_ep_context_data_read_func(self, read: Callable[[str, Any], None], limit: int) -> None:
        self.read, self.limit = read, limit


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """Return an output whose model is encrypted."""
    files = [{"path": MODEL, "role": "model", "plain": {"sha256": hash_bytes(b"content")}}]
    folder = emit(tmp_path / "out", files=files, encryption={"format": 1, "key_id": "2026"})
    (folder / MODEL).write_bytes(encrypted(b"content", MODEL))
    return folder


@pytest.fixture
def context_folder(snapdragon: Machine, tmp_path: Path) -> Path:
    """Return an output whose context binary is encrypted."""
    folder = emit(
        tmp_path / "out", files=[{"path": BINARY, "role": "context-binary", "plain": {"sha256": hash_bytes(bytes(100_000))}}]
    )
    (folder / BINARY).write_bytes(encrypted(bytes(100_000), BINARY))
    vars(snapdragon.module)["SessionOptions"] = WithCallback
    return folder


@pytest.mark.parametrize("key", [KEY, bytearray(KEY), KEY.hex()])
def test_an_encrypted_model_is_opened_from_memory(snapdragon: Machine, model_folder: Path, key: Any) -> None:
    with runtime.open(model_folder, decrypt=key):
        assert snapdragon.log == ["open content"]
    assert snapdragon.options[0].entries == {CONTEXT: str(model_folder / MODEL)}


def test_an_encrypted_model_may_be_in_memory(snapdragon: Machine, model_folder: Path) -> None:
    data = (model_folder / MODEL).read_bytes()
    (model_folder / MODEL).unlink()
    with runtime.open(model_folder, files={MODEL: memoryview(data)}, decrypt=KEY):
        assert snapdragon.log == ["open content"]


@pytest.mark.parametrize("in_memory", [False, True])
def test_an_encrypted_context_binary_is_read_by_the_callback(snapdragon: Machine, context_folder: Path, in_memory: bool) -> None:
    files = {}
    if in_memory:
        files[BINARY] = (context_folder / BINARY).read_bytes()
        (context_folder / BINARY).unlink()
    with runtime.open(context_folder, decrypt=KEY, files=files):
        [options] = snapdragon.options
        assert isinstance(options, WithCallback)
        for name in (BINARY, str(context_folder / BINARY)):
            options.read(name, buffer := Buffer())
            assert (bytes(buffer.data), options.limit) == (bytes(100_000), 100_000)
        with pytest.raises(OpenError, match="not an encrypted file of the manifest"):
            options.read("other.bin", Buffer())


def test_failure_of_the_callback_is_reported_as_such(snapdragon: Machine, context_folder: Path) -> None:
    damaged = bytearray((context_folder / BINARY).read_bytes())
    damaged[-1] ^= 1
    (context_folder / BINARY).write_bytes(damaged)

    def open_session(source: object, sess_options: WithCallback, enable_fallback: int) -> None:
        try:
            sess_options.read(BINARY, Buffer())
        except OpenError as error:
            raise RuntimeError(f"callback failed: {error}") from error

    vars(snapdragon.module)["InferenceSession"] = open_session
    assert f"{BINARY} cannot be decrypted: it is damaged" in refused(context_folder, decrypt=KEY, code="EPB658")


def test_an_onnxruntime_without_the_callback_is_refused(snapdragon: Machine, context_folder: Path) -> None:
    vars(snapdragon.module)["SessionOptions"] = SessionOptions
    assert "install a newer one" in refused(context_folder, decrypt=KEY, code="EPB658")


@pytest.mark.parametrize(
    ("key", "code", "words"),
    [
        (None, "EPB658", "was encrypted with the key '2026'; pass the key as decrypt="),
        (bytes(32), "EPB658", "cannot be decrypted: it was encrypted with another key"),
        (b"tulip-bulb-42", "EPB654", "decrypt must be a key: it has 13 bytes, but a key has 32"),
        ("tulip-bulb-42", "EPB654", "decrypt must be a key: it is neither hex nor Base64"),
        (["tulip-bulb-42"], "EPB654", "decrypt must be a key as bytes, hex or Base64, not list"),
    ],
)
def test_missing_and_wrong_keys_are_refused(snapdragon: Machine, model_folder: Path, key: Any, code: str, words: str) -> None:
    text = refused(model_folder, decrypt=key, code=code)
    assert words in text
    assert "tulip" not in text
