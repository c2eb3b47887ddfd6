"""Server of a remote cache, as strict as bazel-remote, with configurable faults.

It implements the Remote Execution API with Google's protobuf instead of epbuild's code. A record has to be an
`ActionResult` whose files exist, and a blob has to match its digest. The server rewrites the worker of a record,
answers 404 if a blob of a record is missing, and supports neither ranges nor ETags.
"""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tests.support.http_servers import Quiet, answering

_PATH = re.compile(r"(?:/prefix)?/(ac|cas)/([0-9a-f]{64})")
_TEXT, _BYTES, _BOOL, _INT64, _INT32, _MESSAGE = 9, 12, 8, 3, 5, 11
_SCHEMA: Mapping[str, Mapping[str, tuple[int, int, str | None, bool]]] = {
    "Digest": {"hash": (1, _TEXT, None, False), "size_bytes": (2, _INT64, None, False)},
    "OutputFile": {
        "path": (1, _TEXT, None, False),
        "digest": (2, _MESSAGE, "Digest", False),
        "is_executable": (4, _BOOL, None, False),
        "contents": (5, _BYTES, None, False),
    },
    "ExecutedActionMetadata": {"worker": (1, _TEXT, None, False)},
    "ActionResult": {
        "output_files": (2, _MESSAGE, "OutputFile", True),
        "exit_code": (4, _INT32, None, False),
        "stdout_raw": (5, _BYTES, None, False),
        "stdout_digest": (6, _MESSAGE, "Digest", False),
        "stderr_raw": (7, _BYTES, None, False),
        "stderr_digest": (8, _MESSAGE, "Digest", False),
        "execution_metadata": (9, _MESSAGE, "ExecutedActionMetadata", False),
    },
}


def _message_classes() -> dict[str, Any]:
    """Return the messages of remote_execution.proto that a result cache needs."""
    file = descriptor_pb2.FileDescriptorProto(name="reapi_of_tests.proto", package="reapi", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for title, (number, kind, of, repeated) in fields.items():
            entry = message.field.add(name=title, number=number, type=kind, label=3 if repeated else 1)
            if of is not None:
                entry.type_name = f".reapi.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"reapi.{name}")) for name in _SCHEMA}


MESSAGES = _message_classes()


@dataclass
class Fault:
    """A wrong answer of the server to requests of a method in a space. Empty fields match any request."""

    kind: Literal["status", "hang", "reset", "cut", "stall", "flip", "drip", "nonsense"]
    method: str = ""
    space: str = ""
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int = 1_000_000


class CacheServer:
    """Remote cache with its objects by space and name, and its requests. The first matching fault applies."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}/prefix"
        self.objects: dict[tuple[str, str], bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self.latency = 0.0
        self.authorization: str | None = None
        self.released = threading.Event()
        """Event that ends hanging answers."""
        self._lock = threading.Lock()

    def count(self, method: str, space: str = "") -> int:
        return sum(1 for asked, path in self.requests if asked == method and f"/{space}" in path)

    def fault(self, method: str, space: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method in ("", method) and fault.space in ("", space):
                    fault.times -= 1
                    return fault
        return None

    def get(self, space: str, name: str) -> bytes | None:
        data = self.objects.get((space, name))
        if data is None or space == "cas":
            return data
        try:
            result = MESSAGES["ActionResult"].FromString(data)
        except DecodeError:  # which it would not have accepted; a plain web server serves it
            return data
        return data if self._has_all(result) else None

    def put(self, space: str, name: str, data: bytes) -> int:
        """Store an object if it is valid, and return the status of the answer."""
        if space == "cas":
            if hashlib.sha256(data).hexdigest() != name:
                return 400
            self.objects[space, name] = data
            return 200
        try:
            result = MESSAGES["ActionResult"].FromString(data)
        except DecodeError:
            return 400
        if not self._has_all(result) or not result.execution_metadata.worker:
            return 400
        result.execution_metadata.worker = "127.0.0.1"
        self.objects[space, name] = result.SerializeToString()
        return 200

    def _has_all(self, result: Any) -> bool:
        digests = [file.digest for file in result.output_files]
        digests += [getattr(result, name) for name in ("stdout_digest", "stderr_digest") if result.HasField(name)]
        return all(
            re.fullmatch("[0-9a-f]{64}", digest.hash)
            and len(self.objects.get(("cas", digest.hash), b"-" * (digest.size_bytes + 1))) == digest.size_bytes
            for digest in digests
        )


@contextmanager
def serving_cache() -> Iterator[CacheServer]:
    """Run a server while the block runs."""

    class Handler(Quiet, BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer()

        do_HEAD = do_PUT = do_GET  # noqa: N815 - the names that the library gives them

        def _answer(self) -> None:
            server.requests.append((self.command, self.path))
            if server.latency:
                time.sleep(server.latency)
            found = _PATH.fullmatch(self.path)
            if found is None:
                self._send(400, b"no such path")
                return
            space, name = found.groups()
            fault = server.fault(self.command, space)
            if fault is not None and fault.kind in ("status", "hang", "reset", "nonsense"):
                self._instead(fault)
                return
            if server.authorization is not None and self.headers.get("Authorization") != server.authorization:
                self._send(401, b"who are you?")
            elif self.command == "PUT":
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if len(data) == int(self.headers["Content-Length"]):  # else the client has closed the connection
                    self._send(server.put(space, name, data), b"")
            else:
                kept = server.get(space, name)
                if kept is None:
                    self._send(404, b"Not found")
                else:
                    self._send(200, kept, fault)

        def _instead(self, fault: Fault) -> None:
            self.close_connection = True
            if fault.kind == "hang":
                server.released.wait(60)
            elif fault.kind == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            elif fault.kind == "nonsense":
                self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")
            else:
                self.rfile.read(
                    int(self.headers.get("Content-Length", 0))
                )  # on Windows, closing with unread data loses the answer
                self._send(fault.status, b"no", headers={**fault.headers, "Connection": "close"})

        def _send(self, status: int, body: bytes, fault: Fault | None = None, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            with suppress(OSError):
                if fault is None:
                    self.wfile.write(body)
                    return
                half = len(body) // 2
                if fault.kind == "flip":
                    self.wfile.write(body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :])
                    return
                self.close_connection = True
                self.wfile.write(body[:half])
                self.wfile.flush()
                if fault.kind == "stall":
                    server.released.wait(60)
                for byte in body[half:] if fault.kind == "drip" else b"":
                    if server.released.wait(0.05):
                        return
                    self.wfile.write(bytes([byte]))

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that closed the connection

    httpd = Server(("127.0.0.1", 0), Handler)
    server = CacheServer(httpd.server_address[1])
    with answering(httpd):
        try:
            yield server
        finally:
            server.released.set()
