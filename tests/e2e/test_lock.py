"""Locked builds with the real packages: they use the locked files only, or fail with a clear message."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epbuild.toolchain.platforms import get_own_platform
from tests.support.projects import Project, compiled, copy_of_quickstart

pytestmark = pytest.mark.gate

HERE = str(get_own_platform())
ELSEWHERE = "windows-arm64" if HERE != "windows-arm64" else "linux-x86_64"
CLASSIFIER = "emit:classifier/snapdragon-SM8750/*"
PACKAGES = "packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return the quickstart with a lock for this platform and another. Tests work on copies."""
    folder = tmp_path_factory.mktemp("locked")
    project = copy_of_quickstart(folder / "quickstart", folder / "cache")
    project.edit(PACKAGES, f"{PACKAGES}\n    platforms: [{HERE}, {ELSEWHERE}]")
    done = project.epbuild("lock")
    assert done.returncode == 0, done.stderr
    return project


@pytest.fixture
def project(locked: Project, tmp_path: Path) -> Project:
    shutil.copytree(locked.folder, tmp_path / "project")
    return Project(tmp_path / "project", tmp_path / "cache")


def lock_of(project: Project) -> Path:
    return project.folder / "epbuild.lock"


def tamper(project: Project, change: Callable[[str], str]) -> None:
    before = lock_of(project).read_text(encoding="utf-8")
    after = change(before)
    assert after != before
    lock_of(project).write_text(after, encoding="utf-8")


def plan_keys(project: Project, *arguments: str) -> dict[str, str | None]:
    done = project.epbuild("plan", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return {step["id"]: step["key"] for step in json.loads(done.stdout)["steps"]}


def warnings_of(done: str) -> list[str]:
    return [line for line in done.splitlines() if "warning: " in line]


# -- The lock itself ---------------------------------------------------------------------------------------------------


def test_a_lock_has_distinct_ep_files_per_platform_and_no_address(locked: Project) -> None:
    text = lock_of(locked).read_text(encoding="utf-8")
    assert "://" not in text
    files = {
        platform: set(
            re.findall(
                rf'^toolchain\.qnn\.{platform}\.onnxruntime-qnn = \["2\.7\.0", "sha256:([0-9a-f]{{64}})"\]$', text, re.MULTILINE
            )
        )
        for platform in (HERE, ELSEWHERE)
    }
    assert all(files.values())
    assert not files[HERE] & files[ELSEWHERE]


def test_locking_twice_writes_identical_bytes(locked: Project, tmp_path: Path) -> None:
    fresh = copy_of_quickstart(tmp_path / "fresh", tmp_path / "cache")
    shutil.copy(locked.recipe, fresh.recipe)
    assert fresh.epbuild("lock").returncode == 0
    assert lock_of(fresh).read_bytes() == lock_of(locked).read_bytes()
    assert fresh.epbuild("lock", "--check").returncode == 0
    assert lock_of(fresh).read_bytes() == lock_of(locked).read_bytes()


# -- Locked builds -----------------------------------------------------------------------------------------------------


def test_a_build_has_the_same_keys_with_and_without_locked(project: Project) -> None:
    assert compiled(project.build("--locked", "epbuild.yaml", CLASSIFIER))
    assert compiled(project.build("epbuild.yaml", CLASSIFIER)) == set()
    assert project.epbuild("run", "--locked", "--check", "epbuild.yaml", CLASSIFIER).returncode == 0
    assert plan_keys(project, "--locked") == plan_keys(project)


def test_two_checkouts_with_one_lock_have_identical_keys_and_files(project: Project, tmp_path: Path) -> None:
    other = Project(tmp_path / "elsewhere" / "checkout", tmp_path / "another cache")
    shutil.copytree(project.folder, other.folder)
    for each in (project, other):
        each.build("--locked", "epbuild.yaml", CLASSIFIER)
    assert plan_keys(project, "--locked") == plan_keys(other, "--locked")
    assert project.files() == other.files() != {}


def test_a_locked_older_version_is_used_for_the_build(project: Project) -> None:
    """Lock an older NumPy, which the recipe does not name. A build without the lock installs the newest version."""
    newest = re.search(rf'toolchain\.qnn\.{HERE}\.numpy = \["([^"]+)"', lock_of(project).read_text(encoding="utf-8"))
    assert newest is not None
    project.edit(PACKAGES, PACKAGES.replace("]", f", numpy<{newest[1]}]"))
    assert project.epbuild("lock").returncode == 0
    older = re.search(rf'toolchain\.qnn\.{HERE}\.numpy = \["([^"]+)"', lock_of(project).read_text(encoding="utf-8"))
    assert older is not None
    assert older[1] != newest[1]
    project.edit(f", numpy<{newest[1]}]", ", numpy]")
    done = project.epbuild("lock")
    assert "toolchain qnn  onnxruntime" not in done.stdout
    assert f'numpy = ["{older[1]}"' in lock_of(project).read_text(encoding="utf-8")
    project.build("--locked", "epbuild.yaml", CLASSIFIER)
    [manifest] = project.folder.glob("dist/**/manifest.json")
    assert f'"numpy": "{older[1]}"' in manifest.read_text(encoding="utf-8")


# -- Refusals ----------------------------------------------------------------------------------------------------------

ZERO = "0" * 64


def other_recipe(text: str) -> str:
    return text.replace('recipe = "quickstart"', 'recipe = "other"')


def other_requirement(text: str) -> str:
    return text.replace('requires."onnxruntime==1.31.1"', 'requires."onnxruntime==1.30.0"')


def swap_digest(text: str) -> str:
    return re.sub(rf'({HERE}\.onnxruntime = \["[^"]+", "sha256:)[0-9a-f]{{64}}', rf"\g<1>{ZERO}", text)


TAMPERED: list[tuple[str, Callable[[str], str], int, str, str]] = [
    ("another recipe", other_recipe, 2, "EPB243", "the lock of another recipe"),
    (
        "a requirement",
        other_requirement,
        2,
        "EPB244",
        "but epbuild.lock was created for",
    ),
    (
        "a version",
        lambda text: text.replace(f'{HERE}.onnxruntime-qnn = ["2.7.0"', f'{HERE}.onnxruntime-qnn = ["2.6.0"'),
        2,
        "EPB244",
        "has 2.6.0",
    ),
    ("a missing toolchain", lambda text: text.replace("toolchain.qnn.", "toolchain.npu."), 2, "EPB244", "is not in epbuild.lock"),
    ("a missing platform", lambda text: text.replace(f"toolchain.qnn.{HERE}.", "toolchain.qnn.macos-x86_64."), 2, "EPB245", HERE),
    (
        "the catalog",
        lambda text: text.replace('catalog.session-keys = "', 'catalog.session-keys = "9'),
        2,
        "EPB246",
        "session-keys",
    ),
    ("an additional model", lambda text: f'{text}model.decode.graph = "sha256:{ZERO}"\n', 2, "EPB247", "'decode'"),
    ("no lock at all", lambda text: "", 2, "EPB242", "the lock is empty"),
    ("a digest", swap_digest, 3, "EPB307", "Hash mismatch"),
    (
        "a missing package",
        lambda text: re.sub(rf"toolchain\.qnn\.{HERE}\.numpy = .*\n", "", text),
        3,
        "EPB307",
        "numpy",
    ),
]


@pytest.mark.parametrize(
    ("change", "code", "error", "words"), [item[1:] for item in TAMPERED], ids=[item[0] for item in TAMPERED]
)
def test_a_build_that_deviates_from_the_lock_is_refused(
    project: Project, change: Callable[[str], str], code: int, error: str, words: str
) -> None:
    tamper(project, change)
    done = project.epbuild("run", "--locked")
    assert done.returncode == code, done.stdout + done.stderr
    problems = [line for line in done.stderr.splitlines() if "error: " in line]
    assert any(f"[{error}]" in line and words in line for line in problems), done.stderr
    assert "Traceback" not in done.stderr
    assert not (project.folder / "dist").exists()


def test_without_locked_a_mismatched_lock_is_reported_and_ignored(project: Project) -> None:
    tamper(project, other_requirement)
    done = project.epbuild("run", "epbuild.yaml", CLASSIFIER)
    assert done.returncode == 0
    [warning] = warnings_of(done.stderr)
    assert "[EPB244]" in warning
    [warning] = warnings_of(project.epbuild("plan").stderr)
    assert "[EPB244]" in warning


@contextmanager
def changed(file: Path, content: bytes | None) -> Iterator[None]:
    """Replace a file, create it, or remove it if the content is None, and restore it after the block."""
    old = file.read_bytes() if file.exists() else None
    _replace(file, content)
    yield
    _replace(file, old)


def _replace(file: Path, content: bytes | None) -> None:
    file.unlink(missing_ok=True)  # it may be linked to the installer's own
    if content is not None:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)


@contextmanager
def intruder(site: Path) -> Iterator[str]:
    metadata = b"Metadata-Version: 2.1\nName: intruder\nVersion: 1.0\n"
    with changed(site / "intruder-1.0.dist-info" / "METADATA", metadata):
        yield "the package intruder 1.0 is not locked"
    (site / "intruder-1.0.dist-info").rmdir()


@contextmanager
def another_library(site: Path) -> Iterator[str]:
    [library] = site.glob("onnxruntime_qnn/libQnnHtp.so")
    with changed(library, library.read_bytes() + b"\0"):
        yield "1 of the installed files was changed after the installation, such as onnxruntime_qnn/libQnnHtp.so"


@contextmanager
def other_python(site: Path) -> Iterator[str]:
    module = site / "onnxruntime" / "__init__.py"
    with changed(module, module.read_bytes() + b"\n"), changed(module.with_name("extra.py"), b""):
        yield "2 of the installed files were changed after the installation, such as onnxruntime/__init__.py"


@contextmanager
def forgotten_origin(site: Path) -> Iterator[str]:
    origin = next(parent for parent in site.parents if parent.name == "env").with_name("installed.json")
    with changed(origin, None):
        yield "of the installed files were changed after the installation, such as onnxruntime/"


@pytest.mark.skipif(os.name == "nt", reason="the library has another name")
def test_a_changed_environment_of_a_lock_is_refused(project: Project, tmp_path: Path) -> None:
    project.environment["EPBUILD_TOOLCHAIN_DIR"] = str(tmp_path / "toolchains")
    project.build("--locked", "epbuild.yaml", CLASSIFIER)
    [site] = [path.parent for path in (tmp_path / "toolchains").glob("locked-*/env/**/onnxruntime") if path.is_dir()]
    for change in (intruder, another_library, other_python, forgotten_origin):
        with change(site) as words:
            for command in ("run", "plan"):
                done = project.epbuild(command, "--locked", "epbuild.yaml", CLASSIFIER)
                assert done.returncode == 3, (change, done.stdout)
                assert "epbuild.yaml:9:3: error: the toolchain 'qnn' does not match epbuild.lock: " in done.stderr
                assert words in done.stderr
                assert "[EPB308]" in done.stderr
            done = project.epbuild("run", "epbuild.yaml", CLASSIFIER)
            assert done.returncode == 0, (change, done.stderr)
            assert len(warnings_of(done.stderr)) == 1


# -- The fast path -----------------------------------------------------------------------------------------------------


def settle(project: Project, *arguments: str) -> None:
    """Build until there is a snapshot to answer from. Changed files have to be a little older for that."""
    for _ in range(20):
        assert project.epbuild("run", *arguments).returncode == 0
        if project.snapshots():
            return
    raise AssertionError("no snapshot was taken")


def test_the_fast_path_detects_changed_removed_and_added_locks(project: Project) -> None:
    project.build()
    settle(project)
    good = lock_of(project).read_bytes()
    assert "Nothing to do" in project.epbuild("run", "--locked").stdout

    tamper(project, other_recipe)
    assert project.epbuild("run", "--locked").returncode == 2
    assert len(warnings_of(project.epbuild("run").stderr)) == 1

    lock_of(project).unlink()
    settle(project)
    assert project.epbuild("run", "--locked").returncode == 2
    assert project.epbuild("run", "--locked", "--check").returncode == 2

    settle(project)
    lock_of(project).write_bytes(good.replace(b'recipe = "quickstart"', b'recipe = "other"'))
    assert len(warnings_of(project.epbuild("run").stderr)) == 1
    lock_of(project).write_bytes(good)
    settle(project, "--locked")
    assert "Nothing to do" in project.epbuild("run").stdout
