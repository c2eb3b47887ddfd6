"""Untrusted recipe. Its interpreter is a script beside it that leaves a mark and gives the requested answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.commands import RECIPE, write_model
from tests.support.http_servers import Quiet, answering

KEY = f"ed25519:{'A' * 43}="
MARK = "it-ran"
"""File that the interpreter leaves beside the recipe."""
ANSWER = {
    "python": "cpython-3.11",
    "python_version": "3.11.2",
    "platform": "linux-x86_64",
    "distributions": {"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0"},
    "site": [],
    "modules": {"onnxruntime": None, "onnxruntime_qnn": None},
}
"""Answer of a sound interpreter to `probe.py`."""


def write_project(folder: Path, remote: str | None = None) -> Path:
    """Write the recipe and its model, and return the recipe. It names a `remote` cache if there is one."""
    write_model(folder / "relu.onnx")
    text = RECIPE.replace("    packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]\n", "    interpreter: ./evil\n")
    cache = f"cache: {{remote: '{remote}', trust: ['{KEY}']}}\n" if remote else ""
    recipe = folder / "epbuild.yaml"
    recipe.write_text(text + cache, encoding="utf-8")
    write_interpreter(folder)
    return recipe


def write_interpreter(folder: Path, body: str | None = None) -> None:
    """Write an interpreter that leaves its mark and then runs the lines of `body`. By default, it answers as Python does."""
    lines = body if body is not None else f"print({json.dumps(ANSWER)!r})\n"
    mark = f"import pathlib\npathlib.Path({str(folder / MARK)!r}).touch()\n"
    script = folder / "evil"
    script.write_text(f"#!{sys.executable} -S\n{mark}{lines}", encoding="utf-8")
    script.chmod(0o755)


@contextmanager
def listening() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Run a web server that refuses everything. Yield its address, and the path and headers of each request."""
    asked: list[tuple[str, str]] = []

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, str(self.headers)))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815 - the names that the library gives them

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with answering(server):
        yield f"http://127.0.0.1:{server.server_port}/x", asked
