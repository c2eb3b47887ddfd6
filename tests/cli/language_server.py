"""Client of a YAML language server that asks for completions and explanations, as an editor does."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

_SERVER = "yaml-language-server@1.25.0"


def _program() -> str:
    """Return the server's program, which npm installs once per user (27 MB)."""
    known = shutil.which("yaml-language-server")
    if known:
        return known
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epbuild-tests" / _SERVER.replace("@", "-")
    program = home / "node_modules" / ".bin" / "yaml-language-server"
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / ".lock"):
        if not program.exists():
            npm = shutil.which("npm")
            if npm is None:
                pytest.skip("there is no npm to install yaml-language-server with")
            command = [npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", "--silent", _SERVER]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode:
                pytest.skip(f"yaml-language-server cannot be installed: {done.stderr[-300:]}")
    return str(program)


class LanguageServer:
    """One server. Documents are texts with a `|` at the cursor."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._ask("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        self._send({"method": "initialized", "params": {}})

    def completions(self, text: str) -> set[str]:
        """Return the keys or values that the server offers."""
        return set(self.descriptions(text))

    def descriptions(self, text: str) -> dict[str, str]:
        """Return the keys or values that the server offers, with their descriptions."""
        found = self._at_cursor("textDocument/completion", text)
        items = found["items"] if isinstance(found, dict) else found or []
        return {item["label"]: str(item.get("documentation", "")) for item in items}

    def hover(self, text: str) -> str:
        """Return the explanation at the cursor."""
        found = self._at_cursor("textDocument/hover", text)
        return str(found["contents"]["value"]) if found else ""

    def problems(self, text: str) -> dict[tuple[int, int], str]:
        """Return the messages of underlined places, by line and character from 0."""
        uri = self._open(text)
        while True:
            message = self._receive()
            if message.get("method") == "textDocument/publishDiagnostics" and message["params"]["uri"] == uri:
                break
            self._answer(message)
        starts = [(found["range"]["start"], found["message"]) for found in message["params"]["diagnostics"]]
        return {(start["line"], start["character"]): text for start, text in starts}

    def _at_cursor(self, method: str, text: str) -> Any:
        before, after = text.split("|")
        uri = self._open(before + after)
        position = {"line": before.count("\n"), "character": len(before.rpartition("\n")[2])}
        return self._ask(method, {"textDocument": {"uri": uri}, "position": position})

    def _open(self, text: str) -> str:
        """Open a new document with the text, and return its address."""
        uri = f"file:///recipe-{next(self._numbers)}.yaml"
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        return uri

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        number = next(self._numbers)
        self._send({"id": number, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" not in message and message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._answer(message)

    def _answer(self, message: dict[str, Any]) -> None:
        """Answer a request of the server."""
        if "method" in message and "id" in message:
            settings: Any = [{} for _ in message["params"]["items"]] if message["method"] == "workspace/configuration" else None
            self._send({"id": message["id"], "result": settings})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message


@contextmanager
def language_server() -> Iterator[LanguageServer]:
    process = subprocess.Popen([_program(), "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield LanguageServer(process)
    finally:
        process.kill()
        process.wait()
