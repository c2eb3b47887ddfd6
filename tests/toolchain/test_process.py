"""Worker processes: their log is kept, their end is reported correctly, and no process remains."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.errors import EnvironmentFailure
from epbuild.toolchain import process as supervisor
from epbuild.toolchain.diagnosis import FREE_SPACE
from epbuild.toolchain.execution import process_failures
from epbuild.toolchain.process import Ending, WorkerListener, decode_log, strip_colors, supervise
from tests.support.worker_listener import WorkerWords

PATIENCE = 30
"""Timeout of a wait in seconds. It fails the test."""

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")


class EventSetter(WorkerListener):
    """Listener that sets an event after a report, or after a report and a log line."""

    def __init__(self, event: threading.Event, *, awaited: Iterable[str] = ("report",)) -> None:
        self._event = event
        self._awaited = set(awaited)

    def reported(self, report: Mapping[str, Any]) -> None:
        self._met("report")

    def logged(self, line: str) -> None:
        self._met("words")

    def _met(self, what: str) -> None:
        self._awaited.discard(what)
        if not self._awaited:
            self._event.set()


class BrokenListener(WorkerListener):
    def logged(self, line: str) -> None:
        raise BrokenPipeError("nobody reads")


class Supervised:
    """Runner of Python code as a worker in a folder, with a record of its reports and its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "worker.log"
        self.cancelled = threading.Event()
        self.words = WorkerWords()

    def run(
        self,
        code: str,
        *,
        timeout: float | None = PATIENCE,
        environment: Mapping[str, str] | None = None,
        listener: WorkerListener | None = None,
    ) -> Ending:
        return supervise(
            [sys.executable, "-I", "-c", code],
            self.folder,
            self.log,
            listener or self.words,
            timeout=timeout,
            environment=environment or {},
            cancelled=self.cancelled,
        )


@pytest.fixture
def worker(tmp_path: Path) -> Supervised:
    return Supervised(tmp_path)


def test_reports_and_log_lines_arrive_while_the_worker_runs(worker: Supervised) -> None:
    code = """if True:
        import sys
        print('{"event": "started"}', flush=True)
        print("words", file=sys.stderr, flush=True)
        sys.stdin.read()  # until the supervisor is told to stop
    """
    ending = worker.run(code, listener=EventSetter(worker.cancelled, awaited=("report", "words")))
    assert ending.cause == "cancelled"
    assert ending.reports == ({"event": "started"},)
    assert ending.tail == ("words",)


def test_native_output_is_logged_unchanged_and_reported_as_text(worker: Supervised) -> None:
    said = b"\x1b[1;31mfailed: \xff caf\xc3\xa9\x1b[m\n\nno end of line"
    ending = worker.run(f"import os; os.write(2, {said!r})")
    assert worker.log.read_bytes() == said
    assert worker.words.words == ["failed: \ufffd café", "no end of line"]
    assert ending.tail == tuple(worker.words.words)


def test_utf_16_log_of_windows_becomes_the_log_of_linux(worker: Supervised) -> None:
    recorded = [
        ("\x1b[0;93m2026-11-22 14:15:52.651 [W:onnxruntime:, qnn_execution_provider.cc:1 f] no kernel\x1b[m\n", "utf-16-le"),
        ("epbuild: compiling encoder\r\n", "utf-8"),
        ("Operator type: Det Node name: größe/模型 Node index: 3\n", "utf-16-le"),
        ("REASON : Operators of type `Det` are not supported by QNN EP\n", "utf-16-le"),
        ("\n", "utf-16-le"),
        ("0.5ms [ ERROR ] QNN: größe\n", "utf-8"),
        ("ends in 模型\n", "utf-16-le"),
        ("模型 begins\n", "utf-16-le"),
        ("unfinished ", "utf-16-le"),
        ("QNN interrupts\n", "utf-8"),
        ("and goes on\n", "utf-16-le"),
        ("last\n", "utf-16-le"),
    ]
    said = b"".join(text.encode(encoding) for text, encoding in recorded)
    assert said.startswith(b"\x1b\0[\x000\0;\x009\x003\0m\x002\x000\x002\x006\0")
    ending = worker.run(f"import os; os.write(2, {said!r})")
    lines = "".join(text for text, _ in recorded).replace("\r\n", "\n").splitlines(keepends=True)
    assert worker.log.read_bytes() == "".join(lines).encode()
    assert ending.tail == tuple(line for text in lines if (line := strip_colors(text)))


class Chunks(io.RawIOBase):
    """Pipe whose bytes arrive in chunks that end at certain positions."""

    def __init__(self, content: bytes, ends: Iterable[int]) -> None:
        places = sorted({0, *(end % (len(content) + 1) for end in ends), len(content)})
        self._chunks = [content[start:end] for start, end in itertools.pairwise(places)]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._chunks.pop(0) if self._chunks else b""
        part = chunk[: len(buffer)]
        self._chunks[:0] = [chunk[len(part) :]] if len(part) < len(chunk) else []
        buffer[: len(part)] = part
        return len(part)


NEWLINE_BYTES = "Ċਅਊ吊\U0001f60a"
"""Characters that contain the byte of a newline in UTF-16: as the first, the second, both, and in a surrogate."""
LETTERS = st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from(NEWLINE_BYTES + "xé模 ")
UTF_16_LINES = st.builds(str.__add__, st.sampled_from(("2026 ", "[W", "\x1b[m")), st.text(LETTERS)).filter(
    lambda text: re.search(rb"[\x20-\x7e]{8}", text.encode("utf-16-le")) is None  # it could be UTF-8
)
LINES = st.tuples(UTF_16_LINES, st.just("utf-16-le")) | st.tuples(st.just("") | st.text(LETTERS), st.just("utf-8"))


def decode_chunks(content: bytes, ends: Iterable[int] = ()) -> bytes:
    return b"".join(piece for piece, _ in decode_log(io.BufferedReader(Chunks(content, ends))))


@given(st.lists(LINES), st.lists(st.integers(0, 1000)))
def test_each_line_of_a_mixed_log_keeps_its_text_in_all_chunks(lines: list[tuple[str, str]], ends: list[int]) -> None:
    content = b"".join(f"{text}\n".encode(encoding) for text, encoding in lines)
    assert decode_chunks(content, ends).decode() == "".join(f"{text}\n" for text, _ in lines)


@pytest.mark.parametrize("character", NEWLINE_BYTES)
def test_character_with_the_byte_of_a_newline_does_not_split_its_line(worker: Supervised, character: str) -> None:
    text = f"node {character} {character}{character}"
    worker.run(f"import sys; sys.stderr.buffer.write({text!r}.encode('utf-16-le') + b'\\n\\0last\\n')")
    assert worker.words.words == [text, "last"]


def test_long_utf_16_line_is_converted_in_pieces() -> None:
    for text in ("x" * 100_000, "xx" + NEWLINE_BYTES * 20_000, "xxx" + "\U0001f60a" * 50_000):
        assert decode_chunks(f"one\n{text}\nlast\n".encode("utf-16-le")).decode() == f"one\n{text}\nlast\n"


def test_garbage_on_standard_output_is_not_a_report(worker: Supervised) -> None:
    garbage = ["# LIBNATIVE: no configuration", "[1, 2]", '"text"', "{", '{"event": "finished"}', "null"]
    ending = worker.run(f"print('[' * 100_000); print({chr(10).join(garbage)!r})")  # Windows limits the length of a command
    assert (ending.cause, ending.status) == ("exited", 0)
    assert ending.reports == ({"event": "finished"},)


def test_worker_with_much_output_is_not_blocked(worker: Supervised) -> None:
    ending = worker.run("import sys\nfor n in range(20_000): sys.stderr.write(f'line {n}\\n')")
    assert ending.cause == "exited"
    assert ending.tail[-1] == "line 19999"
    assert len(worker.words.words) == 20_000


@pytest.mark.slow
def test_endless_line_is_kept_in_the_log_and_not_in_memory(worker: Supervised) -> None:
    size = 100_000_000
    code = f"""if True:
        import sys
        sys.stderr.write("error: " + "x" * {size} + "\\nlast\\n")
        sys.stdout.write('{{"event": "failed", "message": "' + "y" * {size} + '"}}\\n{{"event": "finished"}}\\n')
    """
    tracemalloc.start()
    try:
        ending = worker.run(code)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10_000_000
    assert worker.log.stat().st_size == size + len("error: \nlast\n")
    assert [text[:10] for text in worker.words.words] == ["error: xxx", "last"]
    assert max(map(len, ending.tail)) <= 4000
    assert ending.reports == ({"event": "finished"},)


def test_exit_status_of_a_worker_is_reported(worker: Supervised) -> None:
    assert worker.run("import os; os._exit(7)").status == 7


@posix_only
def test_crash_is_reported_as_its_signal(worker: Supervised) -> None:
    ending = worker.run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (ending.cause, ending.status) == ("exited", -signal.SIGSEGV)


def test_missing_program_is_an_immediate_error(tmp_path: Path) -> None:
    never = threading.Event()
    with pytest.raises(FileNotFoundError):
        supervise(
            ["python-that-is-not-there"],
            tmp_path,
            tmp_path / "log",
            WorkerListener(),
            timeout=None,
            environment={},
            cancelled=never,
        )


def test_variables_of_the_shell_do_not_reach_the_ep(worker: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    tunables = "glibc.malloc.perturb=1"
    hidden = {"FOO": "1", "QNN_SDK_ROOT": "x", "LD_LIBRARY_PATH": "x", "PYTHONPATH": "x", "GLIBC_TUNABLES": tunables}
    for name, value in hidden.items():
        monkeypatch.setenv(name, value)
    worker.run("import json, os; print(json.dumps({**os.environ, 'event': 'environment'}))")
    [seen] = worker.words.reports
    assert seen["HOME"] == str(worker.folder)
    assert seen["PATH"] == os.environ["PATH"]
    assert seen["ORT_DISABLE_TELEMETRY"] == "1"
    assert not hidden.keys() & seen.keys()


def test_variables_of_the_recipe_reach_the_ep_and_override_others(worker: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_SDK_ROOT", "the shell's")
    asked = {"QNN_SDK_ROOT": "the recipe's", "LC_ALL": "C", "PATH": os.pathsep.join(("/own", os.environ["PATH"])), "EMPTY": ""}
    worker.run("import json, os; print(json.dumps({**os.environ, 'event': 'environment'}))", environment=asked)
    [seen] = worker.words.reports
    assert asked.items() <= seen.items()
    assert seen["HOME"] == str(worker.folder)


def test_failing_listener_ends_the_worker_instead_of_hanging_the_build(worker: Supervised) -> None:
    with pytest.raises(BrokenPipeError, match="nobody reads"):
        worker.run("import sys\nwhile True: sys.stderr.write('words\\n')", listener=BrokenListener())


def test_unwritable_log_is_an_error_instead_of_a_hang(worker: Supervised) -> None:
    worker.log = worker.folder / "missing" / "worker.log"
    with pytest.raises(FileNotFoundError):
        worker.run("import sys\nwhile True: sys.stderr.write('words\\n')")


class Grandchild:
    """Process of a worker, and a connection that breaks at its death. It needs no polling and no process ids."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(PATIENCE)
        self._connection: socket.socket | None = None
        port = self._server.getsockname()[1]
        self._code = f"""if True:
            import socket
            line = socket.create_connection(("127.0.0.1", {port}))
            line.settimeout({PATIENCE})
            print("ready", flush=True)
            line.recv(1)
        """

    def started_by_worker(self, then: str, **options: Any) -> str:
        """Return code for a worker that starts this process, reports that it runs, and continues with `then`."""
        return f"""if True:
            import subprocess, sys
            child = subprocess.Popen([sys.executable, "-c", {self._code!r}], stdout=subprocess.PIPE, **{options!r})
            child.stdout.readline()
            print('{{"event": "ready"}}', flush=True)
            {then}
        """

    def is_dead(self) -> bool:
        """Return whether the process ends by itself within PATIENCE."""
        connection = self._connected()
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def is_alive(self) -> bool:
        connection = self._connected()
        connection.setblocking(False)
        try:
            return connection.recv(1) != b""
        except BlockingIOError:
            return True

    def let_go(self) -> None:
        for end in (self._connection, self._server):
            if end is not None:
                end.close()

    def _connected(self) -> socket.socket:
        if self._connection is None:
            self._connection = self._server.accept()[0]
            self._connection.settimeout(PATIENCE / 3)
        return self._connection


@pytest.fixture
def grandchild() -> Iterator[Grandchild]:
    started = Grandchild()
    yield started
    started.let_go()


WAIT = "sys.stdin.read()"


def test_cancelling_ends_the_worker_and_its_children(worker: Supervised, grandchild: Grandchild) -> None:
    ending = worker.run(grandchild.started_by_worker(WAIT), listener=EventSetter(worker.cancelled))
    assert ending.cause == "cancelled"
    assert grandchild.is_dead()


@pytest.mark.skipif(os.name == "nt", reason="there a job has all of them")
def test_cancelling_also_ends_children_in_their_own_session(worker: Supervised, grandchild: Grandchild) -> None:
    worker.run(grandchild.started_by_worker(WAIT, start_new_session=True), listener=EventSetter(worker.cancelled))
    assert grandchild.is_dead()


def test_timeout_ends_the_worker_and_its_children(
    worker: Supervised, grandchild: Grandchild, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = threading.Event()
    begun = threading.Event()

    def monotonic() -> float:
        # The worker may report before the test reads the clock.
        now = 1000.0 if late.is_set() and begun.is_set() else 0.0
        begun.set()
        return now

    monkeypatch.setattr(time, "monotonic", monotonic)
    ending = worker.run(grandchild.started_by_worker(WAIT), timeout=900, listener=EventSetter(late))
    assert ending.cause == "timed out"
    assert grandchild.is_dead()


def test_leftover_children_of_a_worker_are_ended(worker: Supervised, grandchild: Grandchild) -> None:
    assert worker.run(grandchild.started_by_worker("pass")).cause == "exited"
    assert grandchild.is_dead()


@posix_only
def test_escaped_process_that_holds_the_pipes_does_not_hang_the_build(
    worker: Supervised, grandchild: Grandchild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_GRACE_SECONDS", 0.2)
    ending = worker.run(grandchild.started_by_worker("pass", start_new_session=True))
    assert (ending.cause, ending.status) == ("exited", 0)
    assert ending.reports == ({"event": "ready"},)
    assert grandchild.is_alive()


def test_cancelled_build_starts_no_lasting_worker(worker: Supervised) -> None:
    worker.cancelled.set()
    assert worker.run(f"import sys; {WAIT}").cause == "cancelled"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("plain words\r\n", "plain words"),
        ("\x1b[1;31merror\x1b[m here\x1b[0m", "error here"),
        ("\x1b[Kcompiling model", "compiling model"),
        ("\x1b[2K\x1b[1Gstep 2 of 3", "step 2 of 3"),
        ("no escape [m", "no escape [m"),
        ("\x1b[", "\x1b["),
    ],
)
def test_color_codes_are_removed_from_messages_and_text_stays(line: str, text: str) -> None:
    assert strip_colors(line) == text


@given(parts=st.lists(st.tuples(st.text("abcm[;0 "), st.sampled_from(["", "\x1b[m", "\x1b[0m", "\x1b[1;33m", "\x1b[K"]))))
def test_removing_color_codes_keeps_all_text(parts: list[tuple[str, str]]) -> None:
    written = "".join(text + code for text, code in parts)
    assert strip_colors(written) == "".join(text for text, _ in parts).strip()


def test_report_equals_the_json_that_the_worker_wrote(worker: Supervised) -> None:
    report = {"event": "noted", "message": "größe\n\u2028", "number": 2**60, "nested": {"a": [None, True]}}
    worker.run(f"import sys; sys.stdout.buffer.write({json.dumps(report, ensure_ascii=False).encode()!r})")
    assert worker.words.reports == [report]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a file on a full disk")
def test_a_log_on_a_full_disk_is_reported_with_a_hint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('line', file=sys.stderr)"]
    with pytest.raises(EnvironmentFailure) as raised, process_failures("preparation"):
        supervise(
            command, tmp_path, Path("/dev/full"), WorkerListener(), timeout=None, environment={}, cancelled=threading.Event()
        )
    [problem] = raised.value.problems
    assert (problem.message, problem.hint) == ("cannot run the preparation: No space left on device", FREE_SPACE)
