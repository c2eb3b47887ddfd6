"""Builds without enough disk space, memory or permissions: a clear error, no loss, and a full recovery."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.decoder_builds import DECODER, STAGES, find_keys, get_record
from tests.support.gate import mark_rest_exhaustive
from tests.support.projects import Project, compiled
from tests.support.quick_builds import (
    GROUPS,
    PATIENCE,
    QUALITIES,
    Contents,
    Subject,
    check_blobs,
    check_no_leftovers,
    check_no_workers,
    write_model,
    write_project,
)

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="limits and read-only places are made as Linux has them"),
]

ENVIRONMENT = 3
WIDTH = 512
"""Width of the model 'right'. Its context binary has 0.6 MB, ten times the size of that of 'left'."""
ROOMS = (4, 16, 64, 160, 320, 640, 1280, 2560, 5120, 20480)
"""Free space in KiB of a disk that is full during a step. A build with one of these sizes succeeds."""


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a project with enough of everything, and return its store."""
    folder = tmp_path_factory.mktemp("reference")
    UNEVEN.write(Project(folder / "project", folder / "cache")).build()
    return folder / "cache"


@pytest.fixture(scope="module")
def reference(whole_store: Path) -> dict[str, Contents]:
    """Return the expected output of each group."""
    return outputs(Project(whole_store.with_name("project"), whole_store))


def uneven(project: Project) -> Project:
    write_project(project)
    write_model(project.folder / "right.onnx", 1, WIDTH)
    return project


UNEVEN = Subject(uneven, "vars.quality", QUALITIES, GROUPS)


def outputs(project: Project, subject: Subject = UNEVEN) -> dict[str, Contents]:
    return {name: found for name, found in subject.read(project).items() if found is not None}


class Starved:
    """A project that is built under a shortage, and then again without one.

    `prefix` begins every command. `seen` is the project's path as seen by the test, if that differs.
    """

    def __init__(
        self,
        project: Project,
        reference: dict[str, Contents],
        prefix: Sequence[str] = (),
        seen: Project | None = None,
        subject: Subject = UNEVEN,
    ) -> None:
        self.project = project
        self.reference = reference
        self.prefix = prefix
        self.seen = seen or project
        self.subject = subject
        self.shown = ""
        """Standard output of the last build."""

    def fails(self, *statuses: int, limit: Callable[[], None] | None = None) -> str:
        """Build with one of these exit codes and a message for each problem. Return the messages and the list at the end in one line."""
        done = self._build(limit)
        told, self.shown = done.stderr, done.stdout
        assert done.returncode in statuses, done.stdout + told
        assert "Traceback" not in told
        assert "internal error" not in told
        assert ("error: " in told) == bool(done.returncode)
        self.check_no_partial_files()
        return " ".join(f"{told} {self.shown}".split())

    def check_no_partial_files(self) -> None:
        check_no_workers(self.seen)
        for name, found in outputs(self.seen, self.subject).items():
            assert found == self.reference[name]
        check_blobs(self.seen.cache)

    def check_recovery(self, store: Path | None = None) -> None:
        """Build without a shortage and check the result. Copy missing files from a `store` first; existing ones stay."""
        for path in store.rglob("*") if store else ():
            place = self.seen.cache / path.relative_to(store or path)
            if path.is_file() and path.parts[-3] in ("sha256", "actions") and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)
        done = self._build()
        assert done.returncode == 0, done.stderr
        assert outputs(self.seen, self.subject) == self.reference
        check_no_leftovers(self.seen, self.subject.outputs)
        check_blobs(self.seen.cache)

    def _build(self, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
        arguments = ("run", "--keep-going", "-j", "1")
        if limit is None and not self.prefix:
            return self.project.epbuild(*arguments)
        command, environment = self.project.command(*arguments)
        return subprocess.run(
            [*self.prefix, *command],
            cwd=self.project.folder,
            env=environment,
            preexec_fn=limit,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


@pytest.fixture
def starved(project: Project, reference: dict[str, Contents]) -> Starved:
    return Starved(UNEVEN.write(project), reference)


def at_most(resource_name: str, amount: int) -> Callable[[], None]:
    """Return a function that limits a resource of a process before it starts a program."""

    def limit() -> None:
        import resource

        resource.setrlimit(getattr(resource, resource_name), (amount, amount))

    return limit


@pytest.mark.parametrize("kilobytes", mark_rest_exhaustive([0, 1, 4, 16, 40, 60, 100, 300], sample=[0, 60, 300]))
def test_a_file_size_limit_is_reported_and_fails_only_larger_results(starved: Starved, kilobytes: int, whole_store: Path) -> None:
    told = starved.fails(ENVIRONMENT, limit=at_most("RLIMIT_FSIZE", kilobytes * 1024))
    if kilobytes >= 100:
        assert outputs(starved.project).keys() == {"left"}
        assert "compile:right/npu/right" in told
    starved.check_recovery(whole_store if kilobytes % 60 else None)


def test_an_unwritable_binary_is_reported_as_an_environment_error(starved: Starved) -> None:
    told = starved.fails(ENVIRONMENT, limit=at_most("RLIMIT_FSIZE", 100 * 1024))
    assert "compiling 'right' for npu failed: Failed to write context cache file." in told
    assert "Check the free space in .epbuild/tmp, and the limit on file sizes (`ulimit -f`)." in told
    assert "[EPB405]" in told


@pytest.mark.parametrize("megabytes", mark_rest_exhaustive([64, 128, 192, 256, 320, 448, 640, 800], sample=[64, 448]))
def test_insufficient_memory_is_reported(starved: Starved, megabytes: int, whole_store: Path) -> None:
    told = starved.fails(ENVIRONMENT, limit=at_most("RLIMIT_AS", megabytes << 20))
    assert "memory" in told or "that a process may map (`ulimit -v`)" in told
    starved.check_recovery(whole_store if megabytes > 64 else None)


def test_a_memory_limit_is_not_blamed_on_the_model(starved: Starved) -> None:
    # QNN reports that it can validate no node, and does not mention memory.
    told = starved.fails(ENVIRONMENT, limit=at_most("RLIMIT_AS", 640 << 20))
    assert told.count("of the 671 MB that a process may map (`ulimit -v`): Unable to compile any nodes.") >= len(GROUPS)


@pytest.fixture
def bound(starved: Starved) -> Starved:
    """Apply permissions to these builds even where root runs the tests."""
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("permissions do not bind root, and there is no setpriv to give that up")
        starved.prefix = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--"]
    return starved


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Forbid adding and removing entries in the folder and all folders below it."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        yield
    finally:
        for path in folders:
            path.chmod(0o755)


def test_a_read_only_output_folder_is_reported_and_kept(bound: Starved) -> None:
    project = bound.project
    project.build()
    project.build("--set", "vars.quality=2")
    before = outputs(project)
    bound.reference, wanted = before, bound.reference
    with read_only(project.folder / "dist"):
        told = bound.fails(ENVIRONMENT)
    assert outputs(project) == before
    for group in GROUPS:
        assert f"emit:{group}/npu/directory: error: cannot write the output {group}: Permission denied." in told
    bound.reference = wanted
    bound.check_recovery()


def test_a_recipe_folder_without_write_permission_is_reported_before_any_compile(bound: Starved) -> None:
    with read_only(bound.project.folder):
        told = bound.fails(ENVIRONMENT)
    assert "cannot create .epbuild: Permission denied. Give this user access to this path." in told
    bound.check_recovery()


def test_a_read_only_store_still_restores_results(bound: Starved) -> None:
    project = bound.project
    project.build("epbuild.yaml", "*left*")
    abandoned = project.cache / "cas/tmp/1-left-by-a-killed-build"
    abandoned.write_bytes(b"half")
    os.utime(abandoned, (0, 0))
    shutil.rmtree(project.folder / "dist")
    shutil.rmtree(project.folder / ".epbuild")
    with read_only(project.cache):
        told = bound.fails(ENVIRONMENT)
        assert outputs(project).keys() == {"left"}
    assert "Give this user access to this path, or set EPBUILD_CACHE_DIR" in told
    assert compiled(project.build()) == {"compile:right/npu/right"}
    bound.check_recovery()


@contextmanager
def mounted(starved: Starved, mount: Sequence[str | Path]) -> Iterator[Starved]:
    """Mount something that only some processes see, and run the project's builds in them."""
    script = 'mkdir -p "$1"; shift; mount "$@"; echo ready; read -r line'
    arguments = [str(argument) for argument in (mount[-1], *mount)]
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("mounting something for some processes only needs unshare and nsenter")
    holder = subprocess.Popen(
        ["unshare", "-rm", "sh", "-ec", script, "sh", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != "ready\n":
            pytest.skip(f"this user may not mount anything, not even in a namespace of its own: {holder.communicate()[1]}")
        project, root = starved.project, Path(f"/proc/{holder.pid}/root")
        inside = ["nsenter", f"--target={holder.pid}", "--user", "--mount", "--preserve-credentials"]
        inside += ["env", f"--chdir={project.folder}"]  # the folder as seen from inside
        seen = Project(root / project.folder.relative_to("/"), root / project.cache.relative_to("/"))
        yield Starved(project, starved.reference, inside, seen, starved.subject)
    finally:
        holder.communicate()


@pytest.mark.parametrize(
    ("place", "size", "code"),
    [
        ("cache", "300k", "EPB503"),
        ("project/.epbuild", "300k", "EPB412"),
        ("project/.epbuild", "1300k", "EPB405"),
        ("project/dist", "300k", "EPB503"),
    ],
    ids=["store", "sources", "results", "output"],
)
def test_a_full_file_system_is_reported_and_fails_only_larger_results(
    starved: Starved, tmp_path: Path, place: str, size: str, code: str
) -> None:
    with mounted(starved, ["-t", "tmpfs", "-o", f"size={size}", "none", tmp_path / place]) as full:
        told = full.fails(ENVIRONMENT)
        assert f"[{code}]" in told
        assert outputs(full.seen).keys() == {"left"}
        remount(full, tmp_path / place, "size=64M")
        full.check_recovery()


@pytest.fixture(scope="module")
def built_decoder(tmp_path_factory: pytest.TempPathFactory, decoder_store: Path) -> Project:
    """Return the decoder in parts after an undisturbed build."""
    folder = tmp_path_factory.mktemp("decoder")
    shutil.copytree(decoder_store, folder / "cache")
    project = DECODER.write(Project(folder / "project", folder / "cache"))
    project.build()
    return project


@pytest.fixture(scope="module")
def decoder_keys(built_decoder: Project) -> Mapping[str, str]:
    return find_keys(built_decoder)


KINDS = ("make", "quantize", "split", "copy", "share")
"""Kinds of steps that write to the store and to the staging directory. A compile is part of the action `share`."""
FULL = [(kind, place) for kind in KINDS for place in ("cache", "project/.epbuild")]
OUTPUT_FULL = ("emit", "project/dist")


@pytest.mark.parametrize(("kind", "place"), mark_rest_exhaustive([OUTPUT_FULL, *FULL], sample=[OUTPUT_FULL]))
def test_a_disk_that_is_full_during_a_step_loses_nothing(
    project: Project,
    built_decoder: Project,
    decoder_keys: Mapping[str, str],
    tmp_path: Path,
    kind: str,
    place: str,
    exhaustive: bool,
) -> None:
    """Build with more and more free space, until a build succeeds."""
    action = STAGES[kind].action
    starved = Starved(DECODER.write(project), outputs(built_decoder, DECODER), subject=DECODER)
    with mounted(starved, ["-t", "tmpfs", "-o", "size=64M", "none", tmp_path / place]) as full:
        shutil.copytree(built_decoder.cache, full.seen.cache, dirs_exist_ok=True)
        get_record(full.seen.cache, decoder_keys[action]).unlink(missing_ok=True)
        disk = os.statvfs(full.seen.folder.parent / place)
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        failures = ""
        for room in ROOMS if exhaustive else ROOMS[4::4]:
            remount(full, tmp_path / place, f"size={used + room * 1024}")
            told = full.fails(0, ENVIRONMENT)
            if "error: " not in told:
                break
            failures += full.shown
        assert re.search(rf"failed +{action}$", failures, re.MULTILINE), failures
        remount(full, tmp_path / place, "size=64M")
        full.check_recovery()


def remount(full: Starved, place: Path, options: str) -> None:
    subprocess.run([*full.prefix, "mount", "-o", f"remount,{options}", place], check=True)


def test_a_read_only_file_system_is_reported(starved: Starved) -> None:
    starved.project.build("--set", "vars.quality=2")
    before = outputs(starved.project)
    dist = starved.project.folder / "dist"
    with mounted(starved, ["--bind", dist, dist]) as fixed:
        remount(fixed, dist, "ro,bind")
        fixed.reference = before
        told = fixed.fails(ENVIRONMENT)
        assert "cannot write the output left: Read-only file system." in told
        assert outputs(fixed.seen) == before
    starved.check_recovery()
