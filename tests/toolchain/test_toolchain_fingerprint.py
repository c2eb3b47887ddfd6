"""Fingerprints: they detect every change that could change a compile, and cost nothing without one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from epbuild.core.errors import Position, ToolchainError
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.fingerprint import Fingerprint, probe, read_fingerprint
from epbuild.toolchain.packages import hash_files
from tests.support.moments import at_each_call
from tests.support.packages import install, make_environment, posix_only, site_of, write_script

MODULES = ("tiny_ep", "tiny_runtime")
LIBRARIES = {
    "tiny_ep/__init__.py": b"",
    "tiny_ep/libep.so": b"the EP",
    "tiny_ep/arm/libskel.so.2": b"the skeleton",
    "tiny_ep/readme.txt": b"no library",
    "tiny_ep.libs/libhelper.so": b"the helper",
    "elsewhere/libother.so": b"of no EP",
}


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """Return the interpreter of an environment with one package that holds an EP."""
    made = make_environment(tmp_path / "env")
    install(made, "Tiny_EP", "1.0", LIBRARIES)
    return made


@pytest.fixture
def probed() -> Iterator[list[Path]]:
    """Yield the interpreters that were started, in order."""
    started: list[Path] = []
    with at_each_call(probe, lambda call: started.append(call["interpreter"])):
        yield started


SOUND = json.dumps(
    {
        "python": "cpython-3.11",
        "platform": "linux-x86_64",
        "distributions": {"onnxruntime": "1.31.1"},
        "site": [],
        "modules": dict.fromkeys(MODULES),
    }
)
"""Valid answer of an interpreter."""


def fingerprint(interpreter: Path, modules: Iterable[str], memory: Path, where: Position | None = None) -> Fingerprint:
    return read_fingerprint(interpreter, modules, memory, where).fingerprint


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_fingerprint_has_python_packages_and_library_digests(interpreter: Path, tmp_path: Path) -> None:
    taken = fingerprint(interpreter, MODULES, tmp_path / "memory.json")
    assert taken.python == f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}"
    assert taken.distributions == {"tiny-ep": "1.0"}
    assert taken.libraries == {
        "tiny_ep/libep.so": sha256(b"the EP"),
        "tiny_ep/arm/libskel.so.2": sha256(b"the skeleton"),
        "tiny_ep.libs/libhelper.so": sha256(b"the helper"),
    }


def test_other_package_files_are_one_digest_each_in_the_fingerprint(interpreter: Path, tmp_path: Path) -> None:
    taken = fingerprint(interpreter, MODULES, tmp_path / "memory.json")
    assert taken.files == {"tiny_ep/__init__.py": sha256(b""), "tiny_ep/readme.txt": sha256(b"no library")}
    listing = "".join(f"{digest}  {name}\n" for name, digest in taken.files.items())
    assert taken.document(MODULES)["files"] == {"tiny_ep": sha256(listing.encode())}
    assert taken.document(["tiny_runtime"])["files"] == {}


def test_bytecode_is_not_part_of_the_fingerprint(interpreter: Path, tmp_path: Path) -> None:
    before = fingerprint(interpreter, MODULES, tmp_path / "memory.json")
    (site_of(interpreter) / "tiny_ep" / "__pycache__").mkdir()
    (site_of(interpreter) / "tiny_ep" / "__pycache__" / "__init__.cpython-311.pyc").write_bytes(b"compiled")
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json") == before
    assert fingerprint(interpreter, MODULES, tmp_path / "no memory.json") == before


def test_installed_packages_of_the_tests_can_be_fingerprinted(tmp_path: Path) -> None:
    import numpy
    import onnx

    taken = fingerprint(Path(sys.executable), ["onnx", "numpy"], tmp_path / "memory.json")
    assert taken.distributions["onnx"] == onnx.__version__
    assert taken.distributions["numpy"] == numpy.__version__
    assert any(name.startswith("numpy/") for name in taken.libraries)
    assert any(name.startswith("onnx/") for name in taken.libraries)


def test_equal_environments_in_different_places_are_equal(interpreter: Path, tmp_path: Path) -> None:
    other = make_environment(tmp_path / "another place" / "env")
    install(other, "tiny.ep", "1.0", LIBRARIES)
    documents = [
        fingerprint(python, MODULES, tmp_path / "m.json").document(MODULES, {"cpu": "A CPU"}) for python in (interpreter, other)
    ]
    assert documents[0] == documents[1]
    assert str(tmp_path) not in json.dumps(documents[0])


def test_cpu_is_in_the_document_only_if_an_ep_depends_on_the_cpu() -> None:
    taken = Fingerprint("cpython-3.11", "linux-x86_64", {"a": "1"}, {"a/b.so": "0" * 64})
    assert "A CPU" not in json.dumps(taken.document(["a"]))
    assert taken.document(["a"], {"cpu": "A CPU"}) == {**taken.document(["a"]), "host": {"cpu": "A CPU"}}


def test_key_has_only_the_libraries_of_participating_eps() -> None:
    names = ("onnxruntime/capi/x.so", "left/l.so", "left.libs/c.so", "right/r.so", "inner/i.so")
    taken = Fingerprint("cpython-3.11", "linux-x86_64", {"a": "1"}, dict.fromkeys(names, "0" * 64))
    assert set(taken.document(["onnxruntime", "left"])["libraries"]) == set(names[:3])
    assert set(taken.document(["outer.inner"])["libraries"]) == {"inner/i.so"}


def test_unchanged_environment_is_not_started_again(interpreter: Path, tmp_path: Path, probed: list[Path]) -> None:
    first = fingerprint(interpreter, MODULES, tmp_path / "memory.json")
    assert fingerprint(interpreter, reversed(MODULES), tmp_path / "memory.json") == first
    assert probed == [interpreter]


def swap_library(site: Path) -> None:
    """Replace a library by one of the same name, size and time, as `pip install --force-reinstall` of a local build does."""
    library = site / "tiny_ep" / "libep.so"
    before = library.stat()
    fresh = library.with_name("fresh")
    fresh.write_bytes(b"THE EP")
    os.utime(fresh, ns=(before.st_atime_ns, before.st_mtime_ns))
    fresh.replace(library)


def write_into_library(site: Path) -> None:
    (site / "tiny_ep" / "libep.so").write_bytes(b"the EP, patched")


def patch_module(site: Path) -> None:
    """Write another Python file of the same size and time."""
    module = site / "tiny_ep" / "readme.txt"
    before = module.stat()
    module.write_bytes(b"NO LIBRARY")
    os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))


def add_module(site: Path) -> None:
    (site / "tiny_ep" / "arm" / "extra.py").write_bytes(b"")


def remove_module(site: Path) -> None:
    (site / "tiny_ep" / "__init__.py").unlink()


def move_package(site: Path) -> None:
    """Replace the package by a link to another version, as in an editable checkout."""
    (site / "tiny_ep").rename(site / "one")
    shutil.copytree(site / "one", site / "two")
    (site / "two" / "libep.so").write_bytes(b"of two")
    (site / "tiny_ep").symlink_to("two")


def add_library(site: Path) -> None:
    (site / "tiny_ep" / "libnew.so").write_bytes(b"new")


def add_library_in_new_folder(site: Path) -> None:
    (site / "tiny_ep" / "v81").mkdir()
    (site / "tiny_ep" / "v81" / "libskel.so").write_bytes(b"new")


def add_repaired_library(site: Path) -> None:
    (site / "tiny_ep.libs" / "libnew.dll").write_bytes(b"new")


def remove_library(site: Path) -> None:
    (site / "tiny_ep" / "arm" / "libskel.so.2").unlink()


def add_distribution(site: Path) -> None:
    install(site_python(site), "tiny-plugin", "0.1", {})


def upgrade_distribution(site: Path) -> None:
    shutil.rmtree(site / "Tiny_EP-1.0.dist-info")
    install(site_python(site), "Tiny_EP", "1.1", {})


def remove_distribution(site: Path) -> None:
    shutil.rmtree(site / "Tiny_EP-1.0.dist-info")


def site_python(site: Path) -> Path:
    environment = next(folder for folder in site.parents if (folder / "pyvenv.cfg").exists())
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        patch_module,
        add_module,
        remove_module,
        pytest.param(move_package, marks=pytest.mark.skipif(os.name == "nt", reason="only administrators may make links")),
        swap_library,
        write_into_library,
        add_library,
        add_library_in_new_folder,
        add_repaired_library,
        remove_library,
        add_distribution,
        upgrade_distribution,
        remove_distribution,
    ],
)
def test_changed_environment_differs_despite_equal_requirements(
    interpreter: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    memory = tmp_path / "memory.json"
    before = fingerprint(interpreter, MODULES, memory)
    change(site_of(interpreter))
    after = fingerprint(interpreter, MODULES, memory)
    assert after != before
    assert after == fingerprint(interpreter, MODULES, tmp_path / "no memory.json")


needs_links = pytest.mark.skipif(os.name == "nt", reason="only administrators may make links on Windows")


@needs_links
def test_environment_behind_a_changed_link_differs(tmp_path: Path) -> None:
    """Use one Python for both environments, so that the stats of the interpreters are equal."""
    for name in ("one", "two"):
        install(make_environment(tmp_path / name), "Tiny_EP", "1.0", {**LIBRARIES, "tiny_ep/libep.so": name.encode()})
    (tmp_path / "env").symlink_to("one")
    taken = []
    for name in ("one", "two", "one"):
        (tmp_path / "env").unlink()
        (tmp_path / "env").symlink_to(name)
        taken.append(fingerprint(tmp_path / "env" / "bin" / "python", MODULES, tmp_path / "memory.json"))
        assert taken[-1].libraries["tiny_ep/libep.so"] == sha256(name.encode())
    assert taken[0] == taken[2]


@needs_links
def test_package_with_linked_folders_is_read_completely_and_once(interpreter: Path, tmp_path: Path) -> None:
    expected = fingerprint(interpreter, MODULES, tmp_path / "memory.json")
    package = site_of(interpreter) / "tiny_ep"
    package.rename(tmp_path / "elsewhere")
    package.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "arm").rename(tmp_path / "arm")
    (package / "arm").symlink_to(tmp_path / "arm")
    (tmp_path / "arm" / "above").symlink_to(tmp_path / "elsewhere")
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json") == expected


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_reported(interpreter: Path, tmp_path: Path) -> None:
    library = site_of(interpreter) / "tiny_ep" / "libep.so"
    library.chmod(0)
    with pytest.raises(ToolchainError, match=f"cannot read {library}.*: Permission denied"):
        fingerprint(interpreter, MODULES, tmp_path / "memory.json", WHERE)


def test_file_that_vanishes_while_it_is_read_is_reported(interpreter: Path, tmp_path: Path) -> None:
    library = site_of(interpreter) / "tiny_ep" / "libep.so"
    with pytest.raises(ToolchainError) as caught, at_each_call(hash_files, lambda call: library.unlink()):
        fingerprint(interpreter, MODULES, tmp_path / "memory.json", WHERE)
    [problem] = caught.value.problems
    assert (problem.code, problem.where) == ("EPB310", WHERE)
    assert "which is part of the toolchain: " in problem.message


# -- Changes between two reads -----------------------------------------------------------------------------------------


def touched_files(interpreter: Path, memory: Path, change: Callable[[Path], object]) -> list[str]:
    """Return the names of the files that count as touched after a change in an environment."""
    site = site_of(interpreter)
    first = read_fingerprint(interpreter, MODULES, memory)
    before = Environment("tiny", interpreter, first.fingerprint, memory, frozenset(MODULES), first.states)
    assert before.refresh() is before
    change(site)
    after = before.refresh()
    assert after.fingerprint == before.fingerprint
    return [Path(path).name for path in after.list_touched_since(before)]


def rename_and_back(site: Path) -> None:
    library = site / "tiny_ep" / "libep.so"
    library.rename(site / "kept")
    library.write_bytes(b"another")
    (site / "kept").replace(library)


def write_and_back(site: Path) -> None:
    library = site / "tiny_ep" / "libep.so"
    before = library.stat()
    library.write_bytes(b"another")
    library.write_bytes(b"the EP")
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))


def link_from_elsewhere(site: Path) -> None:
    (site.parent / "linked").hardlink_to(site / "tiny_ep" / "libep.so")


def link_and_swap(site: Path) -> None:
    """Link to the library, replace it for a moment, and restore it from the link."""
    library = site / "tiny_ep" / "libep.so"
    (site.parent / "linked").hardlink_to(library)
    library.unlink()
    library.write_bytes(b"another")
    library.unlink()
    library.hardlink_to(site.parent / "linked")


@pytest.mark.skipif(os.name == "nt", reason="Windows says when a file was made, not when its state changed")
@pytest.mark.parametrize(
    ("change", "names"),
    [
        (rename_and_back, ["libep.so"]),
        (write_and_back, ["libep.so"]),
        (link_and_swap, ["libep.so"]),
        (lambda site: os.utime(site / "tiny_ep" / "__init__.py"), ["__init__.py"]),
        (link_from_elsewhere, []),
        (lambda site: (site / "tiny_ep" / "__pycache__").mkdir(), []),
        (lambda site: (site / "elsewhere" / "new.py").write_bytes(b""), []),
    ],
)
def test_known_fingerprint_is_reused_despite_unrelated_installs(
    interpreter: Path, tmp_path: Path, change: Callable[[Path], object], names: list[str]
) -> None:
    assert touched_files(interpreter, tmp_path / "memory.json", change) == names


def test_touched_library_keeps_the_fingerprint(interpreter: Path, tmp_path: Path) -> None:
    before = fingerprint(interpreter, MODULES, tmp_path / "memory.json")
    os.utime(site_of(interpreter) / "tiny_ep" / "libep.so", ns=(1, 1))
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json") == before


def test_memory_of_one_ep_is_not_used_for_another(interpreter: Path, tmp_path: Path) -> None:
    without = fingerprint(interpreter, ["tiny_runtime"], tmp_path / "memory.json")
    assert without.libraries == {}
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json").libraries


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 0}', b'{"format": 1, "modules": ["tiny_ep", "tiny_runtime"]}'],
)
def test_damaged_or_older_memory_is_discarded(interpreter: Path, tmp_path: Path, content: bytes) -> None:
    expected = fingerprint(interpreter, MODULES, tmp_path / "other.json")
    (tmp_path / "memory.json").write_bytes(content)
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json") == expected
    assert (tmp_path / "memory.json").read_bytes() == (tmp_path / "other.json").read_bytes(), "and is made anew"


def test_unwritable_cache_still_allows_fingerprints(interpreter: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert fingerprint(interpreter, MODULES, tmp_path / "file" / "memory.json").distributions == {"tiny-ep": "1.0"}


def test_package_that_prints_at_startup_does_not_break_the_probe(interpreter: Path, tmp_path: Path) -> None:
    (site_of(interpreter) / "noisy.pth").write_text("import sys; print('hello from a package')\n", encoding="utf-8")
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json").distributions == {"tiny-ep": "1.0"}


# -- Invalid interpreters ----------------------------------------------------------------------------------------------

WHERE = Position("epbuild.yaml", 4, 3)


def refusal(interpreter: Path, memory: Path) -> str:
    with pytest.raises(ToolchainError) as caught:
        fingerprint(interpreter, MODULES, memory, WHERE)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("EPB303", WHERE)
    assert str(interpreter) in problem.message
    assert not memory.exists(), "nothing is remembered of an interpreter that does not run"
    return problem.message


def test_missing_interpreter_is_refused(tmp_path: Path) -> None:
    assert "does not run" in refusal(tmp_path / "nosuch" / "python", tmp_path / "memory.json")


def test_folder_is_not_an_interpreter(tmp_path: Path) -> None:
    assert "does not run" in refusal(tmp_path, tmp_path / "memory.json")


def test_file_that_is_not_a_program_is_not_an_interpreter(tmp_path: Path) -> None:
    (tmp_path / "python").write_bytes(b"\x00\x01\x02")
    (tmp_path / "python").chmod(0o755)
    assert "does not run" in refusal(tmp_path / "python", tmp_path / "memory.json")


@pytest.mark.skipif(os.name == "nt", reason=posix_only)
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo first >&2; echo 'No module named encodings' >&2; exit 1", "could not be probed: No module named encodings"),
        ("exit 3", "could not be probed: no output"),
        ("exit 0", "did not answer as a Python interpreter would"),
        ("echo I am a shell", "did not answer as a Python interpreter would"),
        ("kill -9 $$", "could not be probed: no output"),
        ("yes", "printed more output than a Python interpreter would"),
        ("yes >&2", "printed more output than a Python interpreter would"),
    ],
    ids=["broken python", "silent failure", "silent success", "something else", "killed", "endless", "noisy"],
)
def test_broken_interpreter_is_quoted(tmp_path: Path, script: str, words: str) -> None:
    assert words in refusal(write_script(tmp_path / "python", script), tmp_path / "memory.json")


@pytest.mark.skipif(os.name == "nt", reason=posix_only)
@pytest.mark.parametrize(
    "answer",
    [
        "{}",
        "[]",
        "7",
        "[" * 100_000,
        SOUND.replace("null", "7"),
        SOUND.replace("null", '""'),
        SOUND.replace("null", '"relative"'),
        SOUND.replace("null", '"/a\\u0000b"'),
        SOUND.replace("1.31.1", "\\ud800"),
        SOUND.replace('"1.31.1"', "[1]"),
        SOUND.replace('{"onnxruntime": "1.31.1"}', "[]"),
        SOUND.replace('"site": []', '"site": "/"'),
        SOUND.replace("tiny_ep", "other"),
    ],
    ids=lambda text: text[:20],
)
def test_foreign_answer_of_an_interpreter_is_refused(tmp_path: Path, answer: str) -> None:
    (tmp_path / "answer").write_text(answer, encoding="utf-8")
    python = write_script(tmp_path / "python", f"cat '{tmp_path}/answer'")
    assert f"the interpreter {python} did not answer as a Python interpreter would" in refusal(python, tmp_path / "memory.json")


@pytest.mark.skipif(os.name == "nt", reason=posix_only)
def test_hanging_interpreter_does_not_hang_the_build(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"did not exit within 0\.1 seconds"):
        probe(write_script(tmp_path / "python", "sleep 60"), MODULES, seconds=0.1)
