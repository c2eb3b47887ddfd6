"""Inputs that change during a build: links that get new targets, and toolchains that are modified."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from epbuild.toolchain.provision import Requirements, provision
from tests.support.projects import Project, compiled, toolchain_python
from tests.support.quick_builds import PATIENCE, start, wait_until, workers, write_model, write_project

pytestmark = [pytest.mark.gate, pytest.mark.skipif(os.name == "nt", reason="only administrators may make links on Windows")]


@pytest.fixture
def quick(project: Project) -> Project:
    return write_project(project)


def settle(project: Project) -> None:
    """Run until there is a snapshot to answer from. Changed files have to be a little older for that."""
    for _ in range(20):
        done = project.epbuild("run")
        assert done.returncode == 0, done.stderr
        if project.snapshots() and done.stdout.startswith("Nothing to do: "):
            return
        time.sleep(0.3)
    raise AssertionError("no snapshot was taken")


def test_dot_dot_after_a_link_is_resolved_in_the_links_target(quick: Project) -> None:
    (quick.folder / "real" / "deep").mkdir(parents=True)
    (quick.folder / "link").symlink_to(Path("real", "deep"))
    write_model(quick.folder / "real" / "x.onnx", 7)
    write_model(quick.folder / "x.onnx", 8)
    quick.edit("left: left.onnx", "left: link/../x.onnx")
    settle(quick)
    write_model(quick.folder / "real" / "x.onnx", 9)
    assert quick.epbuild("run", "--check").returncode == 1
    before = quick.files()
    quick.build()
    assert quick.files() != before
    assert quick.epbuild("run", "--check").returncode == 0


# -- Toolchains that change while a compile runs -----------------------------------------------------------------------

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="finds worker processes in /proc")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, quick_store: Path) -> Iterator[Path]:
    """Copy the toolchain for the tests to change, and return the interpreter of the copy."""
    folder = tmp_path_factory.mktemp("toolchain")
    python = toolchain_python("onnxruntime-qnn")
    shutil.copytree(python.parents[1], folder / "copy", symlinks=True)
    yield folder / "copy" / "bin" / python.name
    shutil.rmtree(folder / "copy")


@pytest.fixture
def own(quick: Project, environment: Path) -> Project:
    """Return the project with a toolchain of the user's own, and one step that compiles."""
    quick.edit("packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]", f"interpreter: '{environment.as_posix()}'")
    quick.edit("  right: {models: [right], targets: [npu]}\n", "  default: none\n")
    return quick


def library_of(environment: Path) -> Path:
    [library] = environment.parents[1].rglob("libQnnHtp.so")
    return library


def while_it_compiles(project: Project, change: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    """Build, and call `change` while the worker is stopped."""
    build = start(project, "run")
    wait_until(lambda: bool(workers(project)))
    [worker] = workers(project)
    os.kill(worker, signal.SIGSTOP)
    try:
        change()
    finally:
        os.kill(worker, signal.SIGCONT)
    out, err = build.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess("run", build.wait(), out, err)


def swap_and_put_back(file: Path) -> None:
    kept = file.with_name("kept")
    file.rename(kept)
    file.write_bytes(b"another library")
    kept.replace(file)


def write_and_put_back(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content + b"\0")
    file.write_bytes(content)


def write_and_put_back_with_its_time(file: Path) -> None:
    before = file.stat()
    write_and_put_back(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@linux_only
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("libQnnHtp.so", swap_and_put_back),
        pytest.param("libQnnHtp.so", write_and_put_back_with_its_time, marks=pytest.mark.exhaustive),
        pytest.param("onnxruntime/__init__.py", swap_and_put_back, marks=pytest.mark.exhaustive),
        ("onnxruntime/__init__.py", write_and_put_back_with_its_time),
        # The worker has staged the model itself, so a replacement does not affect it.
        ("left.onnx", write_and_put_back),
    ],
)
def test_an_input_that_changes_temporarily_leaves_no_result(
    own: Project, environment: Path, name: str, change: Callable[[Path], None]
) -> None:
    [file] = own.folder.glob(name) if name == "left.onnx" else environment.parents[1].rglob(name)
    done = while_it_compiles(own, lambda: change(file))
    assert done.returncode == 1, done.stdout + done.stderr
    shown = name if name == "left.onnx" else file
    told = (
        f"an input changed while the model was being compiled: {shown} was touched, so its content may have changed temporarily."
    )
    assert f"error: {told} The result was discarded. Run the build again. [EPB415]" in done.stderr
    assert not list((own.cache / "actions").rglob("*/*"))
    assert compiled(own.build()) == {"compile:left/npu/left"}


@linux_only
def test_a_library_replaced_during_a_compile_leaves_no_result(own: Project, environment: Path) -> None:
    library = library_of(environment)
    kept = library.with_name("kept")

    def swap() -> None:
        library.rename(kept)
        shutil.copyfile(kept, library)
        with library.open("ab") as file:
            file.write(b"\0")

    try:
        done = while_it_compiles(own, swap)
        assert done.returncode == 1
        assert (
            "an input changed while the model was being compiled: library onnxruntime_qnn/libQnnHtp.so changed: " in done.stderr
        )
        assert not list((own.cache / "actions").rglob("*/*"))
    finally:
        kept.replace(library)


@linux_only
def test_a_new_hard_link_to_a_library_is_not_a_change(own: Project, environment: Path, tmp_path: Path) -> None:
    done = while_it_compiles(own, lambda: (tmp_path / "linked.so").hardlink_to(library_of(environment)))
    assert done.returncode == 0, done.stdout + done.stderr


def test_toolchains_share_no_hard_links(tmp_path: Path) -> None:
    """Provision twice. With hard links, an installation elsewhere would look like a change of this one."""
    homes = [tmp_path / "one", tmp_path / "other"]
    pythons = [provision(Requirements(("typing-extensions",)), home, name="npu", where=None) for home in homes]
    files = [file for python in pythons for file in python.parents[1].rglob("typing_extensions.py")]
    assert [file.stat().st_nlink for file in files] == [1, 1]


# -- Warnings ----------------------------------------------------------------------------------------------------------


def test_the_fast_path_repeats_warnings_without_delay(own: Project) -> None:
    """Warn of a lock that belongs to another recipe."""
    (own.folder / "epbuild.lock").write_text('epbuild-lock = 2\nrecipe = "other"\n', encoding="utf-8")
    warnings = own.epbuild("run").stderr
    assert "[EPB243]" in warnings
    settle(own)
    [snapshot] = own.snapshots()
    for environment in ({}, {"GITHUB_ACTIONS": "true"}):
        own.environment = environment
        known = own.epbuild("run")
        assert (known.returncode, known.stdout.partition("(")[0]) == (0, "Nothing to do: 2 steps are current ")
        kept = snapshot.read_bytes()
        snapshot.unlink()
        looked = own.epbuild("run")
        assert known.stderr == looked.stderr
        assert environment or known.stderr == warnings
        snapshot.write_bytes(kept)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "epbuild", "run"],
        cwd=own.folder, env=own.command()[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "epbuild.report.terminal.problems" in modules
    assert not modules & {"epbuild.commands", "epbuild.plan", "epbuild.recipe", "yaml", "sqlite3", "typer", "rich"}
    assert own.epbuild("run", "--locked").returncode == 2, "which is no answer to --locked"
