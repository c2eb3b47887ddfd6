"""Workers that crash, hang, are killed or run out of memory.

The build names the cause, keeps the other results and leaves no process behind. No EP crashes on request. Therefore
these workers run the real interpreter, worker and EP, with a package in front of ONNX Runtime. Where the recipe sets
the environment variable MISBEHAVE, that package misbehaves when a model is compiled.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.gate import mark_rest_exhaustive
from tests.support.projects import Project, failures_of, toolchain_python
from tests.support.quick_builds import PATIENCE, check_no_leftovers, check_no_workers, start, wait_until, workers, write_project

pytestmark = [pytest.mark.gate, pytest.mark.skipif(sys.platform != "linux", reason="finds worker processes in /proc")]

INTERRUPTED = "epbuild: interrupted; finished work is kept"
STOPS_WITHIN = 2
"""Seconds from Ctrl-C to the end of epbuild and of all its processes."""

MISBEHAVING = """
import importlib.util, os, pathlib, sys
real = pathlib.Path({real!r}) / "onnxruntime"
specification = importlib.util.spec_from_file_location("onnxruntime", real / "__init__.py", submodule_search_locations=[str(real)])
module = sys.modules["onnxruntime"] = importlib.util.module_from_spec(specification)
specification.loader.exec_module(module)

class ModelCompiler(module.ModelCompiler):
    def compile_to_file(self, output):
        os.write(2, b"last words of the EP\\n")
        exec(os.environ.get("MISBEHAVE", ""), {{"os": os}})
        super().compile_to_file(output)

module.ModelCompiler = ModelCompiler
"""

SPAWN = "import subprocess; subprocess.Popen(['sleep', '600']); "
HANG = "import time; time.sleep(600)"
STUBBORN = "import signal; [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]; "
EAT = "eaten = [bytes([1]) * 2**24 for _ in range(1024)]"


@pytest.fixture(scope="module")
def misbehaving(tmp_path_factory: pytest.TempPathFactory, quick_store: Path) -> Path:
    """Return an interpreter with the packages of the provisioned toolchain, behind an ONNX Runtime that misbehaves."""
    folder = tmp_path_factory.mktemp("misbehaving")
    real = next((toolchain_python("onnxruntime-qnn").parents[1] / "lib").glob("python*/site-packages"))
    python = toolchain_python("onnxruntime-qnn").resolve()
    subprocess.run([python, "-m", "venv", "--without-pip", folder / "env"], check=True)
    site = next((folder / "env/lib").glob("python*/site-packages"))
    (site / "onnxruntime").mkdir()
    (site / "onnxruntime/__init__.py").write_text(MISBEHAVING.format(real=str(real)), encoding="utf-8")
    (site / "real.pth").write_text(f"{real}\n", encoding="utf-8")
    return folder / "env/bin/python"


@pytest.fixture
def misbehave(project: Project, misbehaving: Path) -> Callable[..., Project]:
    """Return a factory of projects. A worker runs given code before it compiles the model 'left'; 'right' compiles as usual."""
    write_project(project)
    text = project.recipe.read_text(encoding="utf-8")
    [packages] = [line for line in text.splitlines() if "packages" in line]
    text = text.replace(packages, f"  qnn: {{interpreter: {misbehaving.as_posix()}}}")
    target = text[text.index("  npu:") : text.index("groups:")]

    def with_code(code: str, settings: str = "") -> Project:
        other = target.replace("  npu:", "  bad:") + f"    environment: {{MISBEHAVE: {code!r}}}\n"
        changed = text.replace("groups:", f"{other}groups:").replace(
            "left: {models: [left], targets: [npu]}", f"left: {{models: [left], targets: [bad]{settings}}}"
        )
        project.recipe.write_text(changed, encoding="utf-8")
        return project

    return with_code


def tell_failure(project: Project, status: int, code: str) -> str:
    """Build with one failing step, and return its error message."""
    done = project.epbuild("run", "--keep-going", "--json")
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "emitted" in done.stdout, "what does not depend on the failed step goes on"
    assert (project.folder / "dist/right/manifest.json").is_file()
    assert not (project.folder / "dist/left").exists()
    check_no_workers(project, within=1)
    check_no_leftovers(project)
    [told] = failures_of(done.stdout)
    assert told.startswith("compile:left/bad/left: error: ")
    assert told.endswith(f"[{code}]")
    assert "See the whole log: .epbuild/logs/compile+left+bad+left.log." in told
    assert "last words of the EP" in project.epbuild("log", "compile:left/bad/left").stdout
    return told


@pytest.mark.parametrize(
    "name", mark_rest_exhaustive(["SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"], sample=["SIGSEGV", "SIGABRT"])
)
def test_a_crash_is_reported_with_its_signal_and_the_eps_last_output(misbehave: Callable[..., Project], name: str) -> None:
    told = tell_failure(misbehave(f"import signal; {SPAWN}os.kill(os.getpid(), signal.{name})"), 1, "EPB402")
    assert f"the worker crashed ({name}) while compiling 'left' for bad. The EP logged: last words of the EP." in told


def test_a_worker_that_exits_early_is_reported_with_its_status(misbehave: Callable[..., Project]) -> None:
    told = tell_failure(misbehave("os._exit(7)"), 1, "EPB402")
    assert "the worker exited with status 7 while compiling 'left' for bad. The EP logged: last words of the EP." in told


def test_a_hang_ends_at_its_timeout_with_all_child_processes(misbehave: Callable[..., Project]) -> None:
    told = tell_failure(misbehave(f"{STUBBORN}{SPAWN}{HANG}", ", timeout: 2"), 1, "EPB403")
    assert "compiling 'left' for bad did not finish within 2 s and was stopped. The EP logged: last words of the EP." in told


def test_a_worker_killed_from_outside_is_reported(misbehave: Callable[..., Project]) -> None:
    told = tell_failure(misbehave("import signal; os.kill(os.getpid(), signal.SIGKILL)"), 3, "EPB404")
    assert "the worker was killed by an external signal (SIGKILL) while compiling 'left' for bad." in told
    assert "Unless the worker was stopped deliberately, it probably ran out of memory." in told


def test_a_memory_error_in_a_worker_is_reported(misbehave: Callable[..., Project]) -> None:
    told = tell_failure(misbehave("raise MemoryError"), 3, "EPB404")
    assert "the worker ran out of memory while compiling 'left' for bad: MemoryError." in told


LIMITS = {"memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "": ("memory.max", "memory.swap.max")}
"""The files that limit memory, and memory with swap, in control groups of version 1 and 2."""


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """Create a control group with a limit of 400 MB, and return its `cgroup.procs`."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        group = Path("/sys/fs/cgroup", controllers, path.lstrip("/"), f"epbuild-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            limits = [limit for name in LIMITS.get(controllers, ()) if (limit := group / name).exists()]
            for limit in limits:
                limit.write_text("400000000", encoding="ascii")
            if limits:
                yield group / "cgroup.procs"
                return
        finally:
            group.rmdir()
    pytest.skip("this user may not make a control group that limits memory")


def test_a_worker_killed_by_the_kernel_for_memory_is_reported(misbehave: Callable[..., Project], small_memory: Path) -> None:
    project = misbehave(EAT)
    command, environment = project.command("run", "epbuild.yaml", "*left*")
    inside = ["sh", "-c", f'echo $$ > {small_memory}; exec "$@"', "sh", *command]
    done = subprocess.run(
        inside, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "the worker was killed by the kernel for lack of memory (SIGKILL) while compiling 'left' for bad." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("presses", mark_rest_exhaustive([1, 2, 5], sample=[1, 5]))
def test_ctrl_c_stops_all_workers_promptly_for_any_number_of_presses(misbehave: Callable[..., Project], presses: int) -> None:
    project = misbehave(f"{STUBBORN}{SPAWN}{HANG}")
    build = start(project, "run")
    wait_until(lambda: (project.folder / "dist/right/manifest.json").exists() and len(workers(project)) == 2)
    begin = time.monotonic()
    for _ in range(presses):
        build.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, told = build.communicate(timeout=PATIENCE)
    assert build.returncode == 130
    assert told.strip() == INTERRUPTED
    check_no_workers(project, within=STOPS_WITHIN - (time.monotonic() - begin))
    check_no_leftovers(project)


def test_ctrl_c_at_any_moment_leaves_no_process_or_partial_file(
    project: Project, quick_store: Path, tmp_path: Path, exhaustive: bool
) -> None:
    events = tmp_path / "events"
    write_project(project)
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - what pytest shows of a failure
    draw = random.Random(seed)
    for number in range(30 if exhaustive else 5):
        with events.open("w", encoding="utf-8") as file:
            quality = f"vars.quality={1 + number % 3}"
            build = start(project, "run", "--json", "--set", quality, output=file, session=True)
        wait_until(lambda: "run_started" in events.read_text(encoding="utf-8"))
        time.sleep(draw.uniform(0, 0.8))
        begin = time.monotonic()
        # As a terminal does: to the whole foreground process group.
        os.killpg(build.pid, signal.SIGINT)
        _, told = build.communicate(timeout=PATIENCE)
        finished = "run_finished" in events.read_text(encoding="utf-8")
        assert told.strip() == INTERRUPTED or (finished and told == "")
        assert build.returncode == 130 or finished
        check_no_workers(project, within=STOPS_WITHIN - (time.monotonic() - begin))
        check_no_leftovers(project)
    project.build()


def test_child_processes_of_a_worker_end_when_epbuild_is_killed(misbehave: Callable[..., Project]) -> None:
    project = misbehave(f"{SPAWN}{HANG}")
    build = start(project, "run", "epbuild.yaml", "*left*")
    wait_until(lambda: len(workers(project)) == 2)
    build.kill()
    build.communicate(timeout=PATIENCE)
    check_no_workers(project)
