"""Test configuration: all cores, cached bytecode, and samples of the cases that `-m exhaustive` runs."""

from __future__ import annotations

import gc
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import warm_start
from tests.support.decoder_builds import DECODER
from tests.support.projects import Project, built_once, copy_of_quickstart
from tests.support.quick_builds import QUICK, Subject, write_project
from tests.support.windows import IS_WINE

_REAL_EPS = Path(__file__).parent / "e2e"
_BYTECODE = "PYTHONDONTWRITEBYTECODE"
_HERE = (sys.platform, platform.machine().lower())
_SUPPORTED = {("linux", "x86_64"), ("win32", "amd64")}

settings.register_profile("sample", max_examples=15, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "exhaustive", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)

# Hundreds of tests start Python. Without cached bytecode, each start of epbuild takes twice the time.
sys.dont_write_bytecode = False
os.environ.pop(_BYTECODE, None)

# Imported modules and collected tests live to the end. Scanning them for garbage takes half of the startup time.
gc.disable()

warm_start.import_jsonschema()


def _link_or_skip(source: Any, link: Any, *more: Any, **options: Any) -> None:
    """Make a symbolic link, or skip the test if this user of Windows may not make links. Wine makes none and reports no error."""
    try:
        _MAKE_LINK(source, link, *more, **options)
    except OSError as error:
        if getattr(error, "winerror", None) != _NO_PRIVILEGE:
            raise
    if not Path(link).is_symlink() and not os.fspath(link).endswith("current"):  # pytest links the folders of its latest tests
        pytest.skip("wine lacks symbolic links" if IS_WINE else "this user may not make symbolic links")


_MAKE_LINK, _NO_PRIVILEGE = os.symlink, 1314
if sys.platform == "win32":
    os.symlink = _link_or_skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills-seed",
        metavar="SEED[,SECONDS]",
        help="Draw the moments of kills from this seed, and from builds of this length, as a failure printed them; "
        "'random' draws a seed. Default: a fixed seed.",
    )
    parser.addoption(
        "--any-order-seconds", type=float, help="How long projects are edited and built in any order (6; exhaustive: 600)."
    )
    parser.addoption("--any-order-seed", type=int, help="The seed that this begins with, as a failure printed it (0).")
    parser.addoption(
        "--cold-starts",
        action="store_true",
        help="Start Python for each command, rather than fork a process that has epbuild imported.",
    )


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Return a stable test id for keys, which are random in each process."""
    return argname if isinstance(val, str) and val.startswith("ed25519") else None


def pytest_configure(config: pytest.Config) -> None:
    """Run all cases with `-m exhaustive`, and samples with any other `-m`."""
    settings.load_profile("exhaustive" if _exhaustive(config) else "sample")
    if config.getoption("--cold-starts"):
        os.environ[warm_start.COLD_STARTS] = "1"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without tests of the gate with `-m gate`. They are most files, and importing them takes seconds."""
    return (
        config.option.markexpr.strip() == "gate" and collection_path.is_file() and not _mentions_gate(collection_path)
    ) or None


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _exhaustive(config: pytest.Config) -> bool:
    return bool(config.option.markexpr.strip() == "exhaustive")


def _leaves_gate(config: pytest.Config) -> bool:
    """Return whether all tests are run: no path, no keyword and no marker asks for those of the gate."""
    return config.args == config.getini("testpaths") and not config.option.keyword and "gate" not in config.option.markexpr


def _mentions_gate(file: Path) -> bool:
    return b"gate" in file.read_bytes()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests of real EPs as slow. Deselect exhaustive tests, and those of the gate in a full run, unless requested.

    If exhaustive tests are requested, also mark the tests that otherwise run a sample. Tests that wait begin first, because
    other tests compute in the meantime.
    """
    unwanted = set() if _exhaustive(config) else {"exhaustive", "gate"} if _leaves_gate(config) else {"exhaustive"}
    first: list[pytest.Item] = []
    rest: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    files_of_gate: set[Path] = set()
    for item in items:
        markers = {marker.name for marker in item.iter_markers()}
        (left_out if markers & unwanted else first if "waits" in markers else rest).append(item)
        function = getattr(item, "obj", None)
        if getattr(function, "is_hypothesis_test", False) or "exhaustive" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.exhaustive)
        if "gate" in markers:
            files_of_gate.add(item.path)
            item.add_marker(pytest.mark.slow)
        if item.path.is_relative_to(_REAL_EPS):
            item.add_marker(pytest.mark.slow)
            if _HERE not in _SUPPORTED:
                item.add_marker(pytest.mark.skip(reason=f"onnxruntime-qnn compiles on Linux x86-64 and Windows, not on {_HERE}"))
    assert all(map(_mentions_gate, files_of_gate)), "`-m gate` would skip these files"
    items[:] = [*first, *rest]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def exhaustive(pytestconfig: pytest.Config) -> bool:
    """Return whether a test shall try every case instead of a sample."""
    return _exhaustive(pytestconfig)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one more than the cores, as many tests wait for processes and timers. Return 0 for single tests."""
    if config.args and all("::" in argument for argument in config.args):
        return 0
    return 1 + (len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return an empty folder with a store of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder, tmp_path / "cache")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for all processes of a test run."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def quickstart_store(shared_folder: Path) -> Path:
    """Return a store to copy, with all compiled models of the quickstart. It is built once in a test run."""
    return built_once(
        shared_folder / "quickstart", lambda folder: copy_of_quickstart(folder / "quickstart", folder / "cache").build()
    )


@pytest.fixture
def quickstart(tmp_path: Path, quickstart_store: Path) -> Project:
    """Return the quickstart before its first build, with a store of its compiled models. The first build only emits."""
    return copy_of_quickstart(tmp_path / "quickstart", tmp_path / "cache", quickstart_store)


@pytest.fixture
def new_quickstart(tmp_path: Path) -> Project:
    """Return the quickstart with an empty store. The first build compiles."""
    return copy_of_quickstart(tmp_path / "quickstart", tmp_path / "cache")


@pytest.fixture(scope="session")
def quick_store(shared_folder: Path) -> Path:
    """Return a store to copy, with the quick project's compiled models of each quality. It is built once in a test run."""
    return built_once(shared_folder / "quick", lambda folder: build_each_value(QUICK, folder))


@pytest.fixture(scope="session")
def decoder_store(shared_folder: Path) -> Path:
    """Return a store to copy, with all results of the decoder in parts. It is built once in a test run."""
    return built_once(shared_folder / "decoder", lambda folder: build_each_value(DECODER, folder))


def build_each_value(subject: Subject, folder: Path) -> None:
    project = subject.write(Project(folder / "project", folder / "cache"))
    for value in subject.values:
        project.build("--set", f"{subject.variable}={value}")


@pytest.fixture
def quick(tmp_path: Path, quick_store: Path) -> Project:
    """Return the quick project before its first build, with a store of its compiled models. The first build only emits."""
    shutil.copytree(quick_store, tmp_path / "cache")
    return write_project(Project(tmp_path / "project", tmp_path / "cache"))
