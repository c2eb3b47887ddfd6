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


def test_an_environment_is_its_python_its_packages_and_the_bytes_of_its_libraries(interpreter: Path, tmp_path: Path) -> None:
    taken = fingerprint(interpreter, MODULES, tmp_path / "memory.json")
    assert taken.python == f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}"
    assert taken.distributions == {"tiny-ep": "1.0"}
    assert taken.libraries == {
        "tiny_ep/libep.so": sha256(b"the EP"),
        "tiny_ep/arm/libskel.so.2": sha256(b"the skeleton"),
        "tiny_ep.libs/libhelper.so": sha256(b"the helper"),
    }


def test_the_other_files_of_the_packages_are_in_it_and_in_a_key_as_one_digest_each(interpreter: Path, tmp_path: Path) -> None:
    taken = fingerprint(interpreter, MODULES, tmp_path / "memory.json")
    assert taken.files == {"tiny_ep/__init__.py": sha256(b""), "tiny_ep/readme.txt": sha256(b"no library")}
    listing = "".join(f"{digest}  {name}\n" for name, digest in taken.files.items())
    assert taken.document(MODULES)["files"] == {"tiny_ep": sha256(listing.encode())}
    assert taken.document(["tiny_runtime"])["files"] == {}


def test_the_bytecode_that_python_leaves_behind_is_no_part_of_it(interpreter: Path, tmp_path: Path) -> None:
    before = fingerprint(interpreter, MODULES, tmp_path / "memory.json")
    (site_of(interpreter) / "tiny_ep" / "__pycache__").mkdir()
    (site_of(interpreter) / "tiny_ep" / "__pycache__" / "__init__.cpython-311.pyc").write_bytes(b"compiled")
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json") == before
    assert fingerprint(interpreter, MODULES, tmp_path / "no memory.json") == before


def test_the_packages_that_tests_run_on_are_read_as_they_are(tmp_path: Path) -> None:
    import numpy
    import onnx

    taken = fingerprint(Path(sys.executable), ["onnx", "numpy"], tmp_path / "memory.json")
    assert taken.distributions["onnx"] == onnx.__version__
    assert taken.distributions["numpy"] == numpy.__version__
    assert any(name.startswith("numpy/") for name in taken.libraries)
    assert any(name.startswith("onnx/") for name in taken.libraries)


def test_equal_environments_in_different_places_are_one_toolchain(interpreter: Path, tmp_path: Path) -> None:
    other = make_environment(tmp_path / "another place" / "env")
    install(other, "tiny.ep", "1.0", LIBRARIES)
    documents = [
        fingerprint(python, MODULES, tmp_path / "m.json").document(MODULES, {"cpu": "A CPU"}) for python in (interpreter, other)
    ]
    assert documents[0] == documents[1]
    assert str(tmp_path) not in json.dumps(documents[0])


def test_the_cpu_is_in_the_document_only_where_an_eps_output_depends_on_it() -> None:
    taken = Fingerprint("cpython-3.11", "linux-x86_64", {"a": "1"}, {"a/b.so": "0" * 64})
    assert "A CPU" not in json.dumps(taken.document(["a"]))
    assert taken.document(["a"], {"cpu": "A CPU"}) == {**taken.document(["a"]), "host": {"cpu": "A CPU"}}


def test_a_key_has_the_libraries_of_participating_eps_whatever_else_is_installed() -> None:
    names = ("onnxruntime/capi/x.so", "left/l.so", "left.libs/c.so", "right/r.so", "inner/i.so")
    taken = Fingerprint("cpython-3.11", "linux-x86_64", {"a": "1"}, dict.fromkeys(names, "0" * 64))
    assert set(taken.document(["onnxruntime", "left"])["libraries"]) == set(names[:3])
    assert set(taken.document(["outer.inner"])["libraries"]) == {"inner/i.so"}


def test_an_environment_that_did_not_change_is_not_started_again(interpreter: Path, tmp_path: Path, probed: list[Path]) -> None:
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
def test_a_changed_environment_is_another_toolchain_despite_equal_requirements(
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
def test_an_environment_behind_a_link_that_leads_to_another_one_now_is_another(tmp_path: Path) -> None:
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
def test_a_package_whose_folders_are_links_is_read_whole_and_once(interpreter: Path, tmp_path: Path) -> None:
    expected = fingerprint(interpreter, MODULES, tmp_path / "memory.json")
    package = site_of(interpreter) / "tiny_ep"
    package.rename(tmp_path / "elsewhere")
    package.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "arm").rename(tmp_path / "arm")
    (package / "arm").symlink_to(tmp_path / "arm")
    (tmp_path / "arm" / "above").symlink_to(tmp_path / "elsewhere")
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json") == expected


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_told(interpreter: Path, tmp_path: Path) -> None:
    library = site_of(interpreter) / "tiny_ep" / "libep.so"
    library.chmod(0)
    with pytest.raises(ToolchainError, match=f"{library}.* cannot be read: Permission denied"):
        fingerprint(interpreter, MODULES, tmp_path / "memory.json", WHERE)


def test_a_file_that_vanishes_while_it_is_read_is_told(interpreter: Path, tmp_path: Path) -> None:
    library = site_of(interpreter) / "tiny_ep" / "libep.so"
    with pytest.raises(ToolchainError) as caught, at_each_call(hash_files, lambda call: library.unlink()):
        fingerprint(interpreter, MODULES, tmp_path / "memory.json", WHERE)
    [problem] = caught.value.problems
    assert (problem.code, problem.where) == ("EPB310", WHERE)
    assert "which is part of the toolchain, cannot be read: No such file or directory" in problem.message


# -- What happened to it in between ------------------------------------------------------------------------------------


def seen_again(interpreter: Path, memory: Path, change: Callable[[Path], object]) -> list[str]:
    """Return the names of the files that count as touched after a change in an environment."""
    site = site_of(interpreter)
    first = read_fingerprint(interpreter, MODULES, memory)
    before = Environment("tiny", interpreter, first.fingerprint, memory, frozenset(MODULES), first.states)
    assert before.now() is before
    change(site)
    after = before.now()
    assert after.fingerprint == before.fingerprint
    return [Path(path).name for path in after.touched_since(before)]


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
def test_an_earlier_identity_is_known_again_and_installs_elsewhere_do_not_matter(
    interpreter: Path, tmp_path: Path, change: Callable[[Path], object], names: list[str]
) -> None:
    assert seen_again(interpreter, tmp_path / "memory.json", change) == names


def test_a_library_that_was_touched_and_not_changed_is_the_same_toolchain(interpreter: Path, tmp_path: Path) -> None:
    before = fingerprint(interpreter, MODULES, tmp_path / "memory.json")
    os.utime(site_of(interpreter) / "tiny_ep" / "libep.so", ns=(1, 1))
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json") == before


def test_what_was_remembered_for_one_ep_is_no_answer_for_another(interpreter: Path, tmp_path: Path) -> None:
    without = fingerprint(interpreter, ["tiny_runtime"], tmp_path / "memory.json")
    assert without.libraries == {}
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json").libraries


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 0}', b'{"format": 1, "modules": ["tiny_ep", "tiny_runtime"]}'],
)
def test_a_damaged_or_older_memory_is_only_forgotten(interpreter: Path, tmp_path: Path, content: bytes) -> None:
    expected = fingerprint(interpreter, MODULES, tmp_path / "other.json")
    (tmp_path / "memory.json").write_bytes(content)
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json") == expected
    assert (tmp_path / "memory.json").read_bytes() == (tmp_path / "other.json").read_bytes(), "and is made anew"


def test_a_cache_that_cannot_be_written_costs_time_only(interpreter: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert fingerprint(interpreter, MODULES, tmp_path / "file" / "memory.json").distributions == {"tiny-ep": "1.0"}


def test_a_package_that_prints_when_python_starts_does_not_break_the_probe(interpreter: Path, tmp_path: Path) -> None:
    (site_of(interpreter) / "noisy.pth").write_text("import sys; print('hello from a package')\n", encoding="utf-8")
    assert fingerprint(interpreter, MODULES, tmp_path / "memory.json").distributions == {"tiny-ep": "1.0"}


# -- Interpreters that are none ----------------------------------------------------------------------------------------

WHERE = Position("epbuild.yaml", 4, 3)


def refusal(interpreter: Path, memory: Path) -> str:
    with pytest.raises(ToolchainError) as caught:
        fingerprint(interpreter, MODULES, memory, WHERE)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("EPB303", WHERE)
    assert str(interpreter) in problem.message
    assert not memory.exists(), "nothing is remembered of an interpreter that does not run"
    return problem.message


def test_an_interpreter_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "does not run" in refusal(tmp_path / "nosuch" / "python", tmp_path / "memory.json")


def test_a_folder_is_no_interpreter(tmp_path: Path) -> None:
    assert "does not run" in refusal(tmp_path, tmp_path / "memory.json")


def test_a_file_that_is_no_program_is_no_interpreter(tmp_path: Path) -> None:
    (tmp_path / "python").write_bytes(b"\x00\x01\x02")
    (tmp_path / "python").chmod(0o755)
    assert "does not run" in refusal(tmp_path / "python", tmp_path / "memory.json")


@pytest.mark.skipif(os.name == "nt", reason=posix_only)
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo first >&2; echo 'No module named encodings' >&2; exit 1", "could not be probed: No module named encodings"),
        ("exit 3", "could not be probed: no output"),
        ("exit 0", "did not answer as Python does"),
        ("echo I am a shell", "did not answer as Python does"),
        ("kill -9 $$", "could not be probed: no output"),
        ("yes", "produces endless output"),
        ("yes >&2", "produces endless output"),
    ],
    ids=["broken python", "silent failure", "silent success", "something else", "killed", "endless", "noisy"],
)
def test_a_broken_interpreter_is_told_with_what_it_said_last(tmp_path: Path, script: str, words: str) -> None:
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
def test_what_no_python_answers_is_refused_by_the_name_of_the_interpreter(tmp_path: Path, answer: str) -> None:
    (tmp_path / "answer").write_text(answer, encoding="utf-8")
    python = write_script(tmp_path / "python", f"cat '{tmp_path}/answer'")
    assert f"the interpreter {python} ran but did not answer as Python does" in refusal(python, tmp_path / "memory.json")


@pytest.mark.skipif(os.name == "nt", reason=posix_only)
def test_an_interpreter_that_hangs_does_not_hang_the_build(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"did not exit within 0\.1 seconds"):
        probe(write_script(tmp_path / "python", "sleep 60"), MODULES, seconds=0.1)
