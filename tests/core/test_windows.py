"""Behavior on Windows, as far as a fake of its calls can show it: ends of processes, changes and colors."""

from __future__ import annotations

import ctypes
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from epbuild.cache.digests import Digests, StatKey
from epbuild.cache.workspace import Workspace
from epbuild.core import windows
from epbuild.core.atomic import write_file
from epbuild.core.file_use import describe_use
from epbuild.core.host import get_change_time_ns
from epbuild.engine import capacity
from epbuild.onnxfile.edit import staging
from epbuild.report.terminal.screen import has_colors, is_screen
from epbuild.survey import snapshot
from epbuild.toolchain import process as supervisor
from epbuild.toolchain.packages import get_state, is_touched
from epbuild.toolchain.process import end_tree
from tests.core.fake_windows import EPOCH_TICKS, FakeKernel, imitated, know_users, make_sharing_violation
from tests.support.snapshots import take_snapshot

PROCESS = 4242


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    return imitated(monkeypatch)


class FakeProcess:
    """Process as `start` creates it. Its only thread waits if the flags require that."""

    def __init__(self, kernel: FakeKernel, flags: int, pid: int) -> None:
        self.pid, self._handle = pid, pid + 1
        self.killed = False
        kernel.threads.append(SimpleNamespace(ident=pid + 2, process=pid, suspended=1 if flags & 4 else 0))
        kernel.threads.append(SimpleNamespace(ident=pid + 3, process=1, suspended=0))

    def kill(self) -> None:
        self.killed = True

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *reason: object) -> None: ...


class Starter:
    """`start`, and the processes that it started."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel
        self.flags: list[int] = []
        self.started: list[FakeProcess] = []

    def __call__(self, flags: int) -> Any:
        self.flags.append(flags)
        self.started.append(FakeProcess(self.kernel, flags, PROCESS + 10 * len(self.started)))
        return self.started[-1]

    def runs(self, process: Any) -> bool:
        return not process.killed and all(not t.suspended for t in self.kernel.threads if t.process == process.pid)


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="the sizes are those of 64 bits")
def test_structures_have_the_sizes_required_by_windows() -> None:
    sizes = [ctypes.sizeof(kind) for kind in (windows._JobLimits, windows._FileTimes, windows._FileUser)]
    assert sizes == [144, 40, 668]


def test_process_starts_suspended_until_its_job_is_assigned(kernel: FakeKernel) -> None:
    start = Starter(kernel)
    process, job = windows.start_in_job(start)
    assert start.flags == [0x204]
    assert job is not None
    assert [found.processes for found in kernel.jobs] == [{PROCESS + 1}]
    assert start.runs(process)
    job.end()
    assert kernel.ended == {PROCESS + 1}
    job.end()
    assert kernel.open == {}


def test_job_ends_its_processes_even_if_epbuild_is_killed(kernel: FakeKernel) -> None:
    windows.start_in_job(Starter(kernel))
    assert not kernel.ended
    for handle in list(kernel.open):  # as Windows does for a process that has ended
        kernel.CloseHandle(handle)
    assert kernel.ended == {PROCESS + 1}


def test_a_killed_epbuild_ends_processes_that_have_no_job_yet(kernel: FakeKernel) -> None:
    windows.join_job()
    assert [(found.processes, found.kills) for found in kernel.jobs] == [({windows._THIS_PROCESS}, True)]
    assert len(kernel.open) == 1, "the job ends when this process ends, and with it all processes that this process started"
    kernel.refuses = {"AssignProcessToJobObject"}
    windows.join_job()
    assert len(kernel.open) == 1


@pytest.mark.parametrize("call", ["CreateJobObjectW", "SetInformationJobObject"])
def test_process_starts_without_a_job_where_jobs_are_missing(kernel: FakeKernel, call: str) -> None:
    kernel.refuses = {call}
    start = Starter(kernel)
    process, job = windows.start_in_job(start)
    assert (job, start.flags, kernel.open) == (None, [0x200], {})
    assert start.runs(process)


def test_process_that_cannot_join_a_job_runs_without_a_job(kernel: FakeKernel) -> None:
    kernel.refuses = {"AssignProcessToJobObject"}
    start = Starter(kernel)
    process, job = windows.start_in_job(start)
    assert (job, len(start.started), kernel.open, kernel.ended) == (None, 1, {}, set())
    assert start.runs(process)


def test_process_that_cannot_be_resumed_is_started_again(kernel: FakeKernel) -> None:
    kernel.refuses = {"NtResumeProcess"}
    start = Starter(kernel)
    process, job = windows.start_in_job(start)
    assert (job, start.flags, kernel.open) == (None, [0x204, 0x200], {})
    assert start.started[0].killed
    assert start.runs(process)


def test_worker_is_ended_by_its_job_on_cancel_and_on_exit(kernel: FakeKernel) -> None:
    for end in ("kill", "kill_rest"):
        kernel.ended.clear()
        process, job = windows.start_in_job(Starter(kernel))
        process.wait = lambda timeout=None: 0  # type: ignore[method-assign]
        getattr(supervisor._Tree(process, job), end)()
        assert kernel.ended == {PROCESS + 1}


class RealProcess(subprocess.Popen[bytes]):
    """Process as Windows starts it. No other system accepts its flags."""

    def __init__(self, *arguments: Any, creationflags: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._handle = self.pid


@pytest.mark.skipif(sys.platform == "win32", reason="the fake has no handles of real processes")
@pytest.mark.parametrize(("code", "how"), [("print('{}')", "exited"), ("import sys; sys.stdin.read()", "cancelled")])
def test_complete_run_of_a_worker_uses_one_job(
    kernel: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, how: str
) -> None:
    def start(*arguments: Any, **options: Any) -> RealProcess:
        process = RealProcess(*arguments, **options)
        kernel.real.add(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    cancelled = threading.Event()
    if how == "cancelled":
        cancelled.set()
    ending = supervisor.supervise(
        [sys.executable, "-I", "-c", code],
        tmp_path,
        tmp_path / "log",
        supervisor.WorkerListener(),
        timeout=60,
        environment={},
        cancelled=cancelled,
    )
    assert (ending.cause, kernel.ended) == (how, kernel.real)
    assert len(kernel.jobs) == 1


class FakeTree:
    """Process with two descendants, one of which has already exited at the time of the kill."""

    killed: list[int]

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def children(self, *, recursive: bool) -> list[FakeTree]:
        return [FakeTree(2), FakeTree(3)]

    def kill(self) -> None:
        if self.pid == 2:
            raise psutil.NoSuchProcess(2)
        self.killed.append(self.pid)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    FakeTree.killed = []
    monkeypatch.setattr("psutil.Process", FakeTree)
    return FakeTree.killed


def test_descendants_are_searched_without_a_job(monkeypatch: pytest.MonkeyPatch, killed: list[int]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    process: Any = SimpleNamespace(pid=PROCESS, wait=lambda: 0)
    tree = supervisor._Tree(process)
    tree.kill_rest()
    assert killed == []
    tree.kill()
    assert killed == [PROCESS, 3]


def test_process_tree_is_ended_even_if_partly_gone(killed: list[int]) -> None:
    end_tree(1)
    assert killed == [1, 3]


SHELL = {
    "SystemRoot": r"C:\Windows",
    "Path": r"C:\Windows\system32",
    "USERNAME": "me",
    "USERPROFILE": r"C:\Users\me",
    "TEMP": r"C:\t",
    "NUMBER_OF_PROCESSORS": "8",
    "PROCESSOR_ARCHITECTURE": "AMD64",
    "ProgramFiles(x86)": r"C:\Program Files (x86)",
    "ProgramData": r"C:\ProgramData",
    "QNN_SDK_ROOT": "x",
    "PYTHONPATH": "x",
}


def test_windows_worker_gets_required_variables_and_no_shell_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "environ", dict(SHELL))
    found = supervisor._build_environment(Path("staging"), {})
    assert found.keys() == {
        *SHELL.keys() - {"QNN_SDK_ROOT", "PYTHONPATH"},
        "HOME",
        "LC_ALL",
        "PYTHONUTF8",
        "ORT_DISABLE_TELEMETRY",
    }


def test_recipe_variable_wins_on_windows_in_any_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "environ", {"PATH": "the shell's"})
    found = supervisor._build_environment(Path("staging"), {"Path": "the recipe's", "home": "the recipe's"})
    assert {name.upper(): found[name] for name in found if name.upper() in ("PATH", "HOME")} == {
        "PATH": "the recipe's",
        "HOME": "the recipe's",
    }
    assert len(found) == 5


def test_windows_variables_are_not_inherited_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "environ", {**SHELL, "PATH": "/bin"})
    assert supervisor._build_environment(Path("staging"), {}).keys() == {
        "PATH",
        "TEMP",
        "HOME",
        "LC_ALL",
        "PYTHONUTF8",
        "ORT_DISABLE_TELEMETRY",
    }


def test_change_time_is_in_nanoseconds_since_1970(kernel: FakeKernel, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"x")
    kernel.changed[file] = EPOCH_TICKS + 17_000_000_000_000_001
    assert get_change_time_ns(file, file.stat()) == 1_700_000_000_000_000_100
    assert kernel.open == {}


@pytest.mark.parametrize("call", ["CreateFileW", "GetFileInformationByHandleEx"])
def test_file_system_without_change_times_yields_zero(kernel: FakeKernel, tmp_path: Path, call: str) -> None:
    (tmp_path / "x").touch()
    kernel.changed[tmp_path / "x"] = EPOCH_TICKS + 5
    kernel.refuses = {call}
    assert get_change_time_ns(tmp_path / "x", (tmp_path / "x").stat()) == 0
    kernel.refuses = set()
    kernel.changed.clear()  # as FAT reports it
    assert get_change_time_ns(tmp_path / "x", (tmp_path / "x").stat()) == 0
    assert get_change_time_ns(tmp_path / "gone", (tmp_path / "x").stat()) == 0
    assert kernel.open == {}


def test_unfollowed_link_has_its_own_change_time(kernel: FakeKernel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    link = tmp_path / "link"
    link.symlink_to("file")
    get_change_time_ns(link, link.lstat())
    get_change_time_ns(link, link.stat())
    assert [flags for _, flags in kernel.opened] == [0x02200000, 0x02000000]


def test_file_rewritten_with_equal_size_and_times_is_read_again(kernel: FakeKernel, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"one")
    old = 1_600_000_000_000_000_000
    os.utime(file, ns=(old, old))
    kernel.changed[file] = EPOCH_TICKS + 16_000_000_000_000_000
    with Workspace.open(tmp_path / ".epbuild") as workspace:
        before = Digests(workspace.files).of(file)
        assert workspace.files.get_many([str(file)])
        file.write_bytes(b"two")
        os.utime(file, ns=(old, old))
        assert Digests(workspace.files).of(file) == before  # only the time of change shows it
        kernel.changed[file] += 1
        assert Digests(workspace.files).of(file) != before


def test_temporarily_replaced_library_counts_as_touched(kernel: FakeKernel, tmp_path: Path) -> None:
    library = tmp_path / "ep.dll"
    library.touch()
    kernel.changed[library] = EPOCH_TICKS + 1
    before = {str(library): get_state(str(library))}
    assert not is_touched(str(library), before, {str(library): get_state(str(library))})
    kernel.changed[library] += 1
    assert is_touched(str(library), before, {str(library): get_state(str(library))})


def test_fast_path_detects_a_change_with_equal_size_and_times(
    kernel: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    recipe, model = tmp_path / "epbuild.yaml", tmp_path / "model.onnx"
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / ".epbuild").mkdir()
    (tmp_path / ".epbuild" / "state.sqlite").touch()
    old = 1_600_000_000_000_000_000
    for file in (recipe, model):
        file.write_bytes(b"one")
        os.utime(file, ns=(old, old))
        kernel.changed[file] = EPOCH_TICKS + 16_000_000_000_000_001

    def answered() -> bool:
        return snapshot.try_fast_path(["run", str(recipe)], lambda: 0.1) is not None

    began = snapshot.read_clock(str(recipe))
    assert began is not None
    take_snapshot(recipe, [recipe, model], began)
    model.write_bytes(b"two")
    os.utime(model, ns=(old, old))
    assert answered()  # only the time of change shows it
    kernel.changed[model] += 1
    assert not answered()
    kernel.changed[model] = EPOCH_TICKS + began[0] // 100  # too fresh to be trusted
    take_snapshot(recipe, [recipe, model], began)
    assert not answered()


def test_creation_time_is_not_compared(kernel: FakeKernel, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    status = file.stat()
    kernel.changed[file] = EPOCH_TICKS + 7
    assert StatKey.of(file) == (0, status.st_mtime_ns, 700, status.st_ino)


class Terminal:
    def __init__(self, *, is_one: bool = True) -> None:
        self._is_one = is_one

    def isatty(self) -> bool:
        return self._is_one

    def fileno(self) -> int:
        return 1


@pytest.fixture
def console(kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(get_osfhandle=lambda descriptor: 7))
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return kernel


def test_console_is_switched_to_colors(console: FakeKernel) -> None:
    assert has_colors(Terminal())
    assert console.console == 0x7


@pytest.mark.parametrize("call", ["GetConsoleMode", "SetConsoleMode"])
def test_console_without_color_support_gets_no_colors(console: FakeKernel, call: str) -> None:
    console.refuses = {call}
    assert not has_colors(Terminal())
    assert not is_screen(Terminal())


def test_terminal_without_a_descriptor_supports_colors(console: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    assert has_colors(stream)
    assert console.console == 0x3


def test_stream_that_is_not_a_console_is_left_alone(console: FakeKernel) -> None:
    assert not has_colors(Terminal(is_one=False))
    assert console.console == 0x3


def test_forced_colors_are_displayed_as_well_as_written(console: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert has_colors(Terminal())
    assert console.console == 0x7
    assert has_colors(Terminal(is_one=False))


def test_memory_size_is_read_from_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=16 << 30))
    assert capacity._read_physical_memory() == 16 << 30


def test_file_in_use_is_named_with_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcde":
        (tmp_path / name).touch()
    manager = know_users(monkeypatch, {tmp_path / "d": (12, "Notepad"), tmp_path / "x": (13, "größe.exe")})
    assert describe_use(make_sharing_violation(str(tmp_path), code=5)) == f"{tmp_path / 'd'} is used by Notepad (process 12)"
    error = make_sharing_violation(str(tmp_path / "a"), str(tmp_path / "x"))
    assert describe_use(error) == f"{tmp_path / 'x'} is used by größe.exe (process 13)"
    assert manager.sessions == 0


def test_program_that_uses_a_file_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    know_users(monkeypatch, {tmp_path / "a": (12, "Notepad")})
    error = make_sharing_violation(str(tmp_path / "a"))
    used = describe_use(error)
    know_users(monkeypatch, {})  # the program has ended
    assert describe_use(error) == used == f"{tmp_path / 'a'} is used by Notepad (process 12)"


def test_file_in_use_by_an_unknown_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    know_users(monkeypatch, {})
    assert describe_use(make_sharing_violation(str(tmp_path / "a"))) == f"{tmp_path / 'a'} is used by another program"
    assert describe_use(make_sharing_violation(str(tmp_path / "a"), code=5)) is None, "the permission may be missing"
    assert describe_use(PermissionError(13, "Permission denied", "a")) is None


def write_recipe(folder: Path) -> None:
    write_file(folder / "file", "new")


def relink(folder: Path) -> None:
    with staging.drafts(folder, []) as drafted:
        (drafted / "file").write_text("new", encoding="utf-8")
        staging.overwrite(drafted, folder, "file")


@pytest.mark.parametrize("write", [write_recipe, relink])
def test_file_held_by_an_antivirus_program_is_replaced_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    replace, refusals, pauses = Path.replace, [True, True], list[float]()

    def replace_later(source: Path, destination: Path) -> Path:
        if refusals:
            refusals.pop()
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        return replace(source, destination)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(Path, "replace", replace_later)
    (tmp_path / "file").write_text("old", encoding="utf-8")
    write(tmp_path)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "new"
    assert pauses == [0.01, 0.05]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("value", "allowed"), [(1, True), (0, False), (None, False)])
def test_long_path_setting_is_read_from_the_registry(value: int | None, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(folder: object, name: str) -> tuple[int, int]:
        assert name == "LongPathsEnabled"
        if value is None:
            raise FileNotFoundError(2, "The system cannot find the file specified")
        return value, 4

    registry = SimpleNamespace(
        HKEY_LOCAL_MACHINE="HKLM", OpenKey=lambda root, path: nullcontext(f"{root}\\{path}"), QueryValueEx=look_up
    )
    monkeypatch.setitem(sys.modules, "winreg", registry)
    assert windows.are_long_paths_allowed() is allowed
