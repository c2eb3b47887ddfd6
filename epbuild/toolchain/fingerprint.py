"""The fingerprint of a toolchain: its Python, platform, packages and their bytes.

Hashing a few hundred MB of files at every run would cost more than all else, so a fingerprint is kept with the stat of every file, the
listing of every package folder, and the links that lead to them; when any of those differs, the environment is probed and hashed again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, field

from epbuild.core.atomic import write_file
from epbuild.core.errors import Position, Problem, ToolchainError
from epbuild.core.safepath import links_on_the_way
from epbuild.toolchain.packages import REPAIRED, FileState, Tree, digest_of_all, digests_of, is_library, package_tree, state_of
from epbuild.toolchain.process import ask_program
from epbuild.worker.scripts import PROBE

FORMAT = 4
PROBE_SECONDS = 120
_MAX_ANSWER = 16 << 20
"""Bytes that a probe may write; one of 10,000 distributions has 400 kB."""
_MAX_QUOTE = 500
_CHECK_INTERPRETER = "Check the toolchain's interpreter."


class Fingerprint(Struct, frozen=True):
    """The identity of an environment, free of paths, times and host names."""

    python: str
    """Implementation and minor version, such as `cpython-3.11`."""
    platform: str
    distributions: Mapping[str, str]
    libraries: Mapping[str, str]
    """SHA-256 of each shared library of ONNX Runtime and the EPs, by its name below the package folder's parent."""
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each other file of their packages, named in the same way."""

    def document(self, modules: Iterable[str], host: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The fingerprint as a key holds it, with the packages of those `modules` alone: not of EPs that other targets use.

        Libraries are in it one by one, the hundreds of other files of a package by one digest. `host` is what of the machine is part of
        it, for EPs whose output depends on that.
        """
        folders = sorted({module.rpartition(".")[2] for module in modules})
        others = {folder: of_package(self.files, folder) for folder in folders}
        document: dict[str, Any] = {
            "python": self.python,
            "platform": self.platform,
            "distributions": dict(self.distributions),
            "libraries": {name: digest for folder in folders for name, digest in of_package(self.libraries, folder).items()},
            "files": {folder: digest_of_all(files) for folder, files in others.items() if files},
        }
        if host is not None:
            document["host"] = dict(host)
        return document


class Look(Struct, frozen=True):
    """A fingerprint, and the state of every file and folder that it came from when it was taken, or was seen to hold still."""

    fingerprint: Fingerprint
    states: Mapping[str, FileState | None]


def of_package(files: Mapping[str, str], folder: str) -> dict[str, str]:
    """Those of a fingerprint's files that belong to the package in a folder of that name."""
    return {name: digest for name, digest in files.items() if name.partition("/")[0].removesuffix(REPAIRED) == folder}


class NotProbed(Exception):
    """Raised where an interpreter would have to be started, and must not be."""


def look(interpreter: Path, modules: Iterable[str], memory: Path, where: Position | None = None, *, may_run: bool = True) -> Look:
    """Return the fingerprint of `interpreter`'s environment, whose `modules` are the packages that hold ONNX Runtime and the EPs.

    `memory` is the file that keeps the last answer. Raises ToolchainError, which points at `where`, if the interpreter does not run, and
    NotProbed if it had to run and may not.
    """
    wanted = sorted(modules)
    remembered = _remembered(memory)
    # Some steps alone may need fewer modules.
    if remembered.get("format") == FORMAT and set(wanted) <= set(remembered.get("modules", ())):
        with contextlib.suppress(OSError):
            trees = {package: package_tree(package) for package in remembered["packages"]}
            states = _states(remembered, trees)
            if (
                {package: tree.files for package, tree in trees.items()} == remembered["packages"]
                and all(_stat(states[path]) == stat for path, stat in remembered["files"].items())
                and all(_listing(Path(path)) == listing for path, listing in remembered["folders"].items())
                and links_on_the_way(remembered["files"]) == remembered["links"]
            ):
                return Look(Fingerprint(**remembered["fingerprint"]), states)
    if not may_run:
        raise NotProbed
    return _take(interpreter, wanted, memory, where)


def probe(
    interpreter: Path, modules: Iterable[str], where: Position | None = None, *, seconds: float = PROBE_SECONDS
) -> dict[str, Any]:
    """Run `worker/probe.py` in the environment and return what it reports. Raises ToolchainError (EPB303)."""

    def failure(why: str) -> ToolchainError:
        return ToolchainError(Problem("EPB303", f"the interpreter {interpreter} {why}", where, _CHECK_INTERPRETER))

    wanted = list(modules)
    try:
        with TemporaryDirectory(prefix="epbuild-probe-") as folder:
            command = [str(interpreter), "-I", str(PROBE), *wanted]
            done = ask_program(command, Path(folder), timeout=seconds, most=_MAX_ANSWER)
    except OSError as error:
        raise failure(f"does not run: {error.strerror or error}") from error
    if done.how == "timed out":
        raise failure(f"did not end within {seconds:g} seconds")
    if done.how == "wrote too much":
        raise failure("writes without end, and did not answer as Python does")
    if done.status != 0:
        lines = done.errors.decode("utf-8", "replace").strip().splitlines()
        raise failure(f"could not be probed: {lines[-1][:_MAX_QUOTE] if lines else 'no output'}")
    try:
        # Packages may print when Python starts; the answer is the last line.
        document = json.loads(done.output.decode("utf-8", "replace").splitlines()[-1])
        _check_answer(document, wanted)
    except (IndexError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise failure("ran and did not answer as Python does") from error
    return dict(document)


def _check_answer(answer: Any, modules: Iterable[str]) -> None:
    """Raise ValueError, KeyError, TypeError or AttributeError for what `probe.py` never answers: any program may be the interpreter."""
    texts = [answer["python"], answer["platform"], *answer["distributions"].keys(), *answer["distributions"].values()]
    folders = {module: answer["modules"][module] for module in modules}
    paths = [*answer["site"], *(folder for folder in folders.values() if folder is not None)]
    if not isinstance(answer["site"], list) or len(folders) != len(answer["modules"]):
        raise TypeError
    for text in texts:
        text.encode("utf-8")
    for path in paths:
        if b"\0" in os.fsencode(path) or not isinstance(path, str) or not Path(path).is_absolute():
            raise ValueError(path)


def _take(interpreter: Path, modules: list[str], memory: Path, where: Position | None) -> Look:
    seen = probe(interpreter, modules, where)
    try:
        trees = {folder: package_tree(folder) for folder in seen["modules"].values() if folder}
        names = {
            Path(file).relative_to(Path(folder).parent).as_posix(): file for folder, tree in trees.items() for file in tree.files
        }
        document: dict[str, Any] = {
            "format": FORMAT,
            "modules": modules,
            # Before the files are read: what changes meanwhile is looked at again.
            "links": links_on_the_way([str(interpreter), *names.values()]),
            "folders": {path: _listing(Path(path)) for path in seen["site"]},
            "packages": {folder: tree.files for folder, tree in trees.items()},
            "files": dict.fromkeys([str(interpreter), *names.values()]),
        }
        states = _states(document, trees)
        document["files"] = {path: _stat(states[path]) for path in document["files"]}
        digests = dict(zip(names, digests_of(names.values()), strict=True))
    except OSError as error:
        message = f"{error.filename or interpreter}, which is part of the toolchain, cannot be read: {error.strerror or error}"
        raise ToolchainError(Problem("EPB310", message, where, "Check its permissions, or install its package again.")) from error
    document["fingerprint"] = {
        "python": seen["python"],
        "platform": seen["platform"],
        "distributions": seen["distributions"],
        "libraries": {name: digest for name, digest in digests.items() if is_library(name)},
        "files": {name: digest for name, digest in digests.items() if not is_library(name)},
    }
    with contextlib.suppress(OSError):  # only a memory: an unwritable cache costs time, not correctness
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_file(memory, json.dumps(document, sort_keys=True), durable=False)
    return Look(Fingerprint(**document["fingerprint"]), states)


def _states(document: Mapping[str, Any], trees: Mapping[str, Tree]) -> dict[str, FileState | None]:
    """The state of all that a fingerprint's document names, and of the folders of its packages, as it is now."""
    folders = [folder for tree in trees.values() for folder in tree.folders]
    return {path: state_of(path) for path in (*document["files"], *document["folders"], *folders)}


def _stat(state: FileState | None) -> list[int] | None:
    """The part of a file's state that a fingerprint is remembered with: how many links lead to the file is no part of it."""
    return None if state is None else list(state[:4])


def _listing(folder: Path) -> list[str]:
    """The names of installed distributions' metadata: they carry the version, so they change with every install."""
    try:
        return sorted(
            item.name for item in folder.iterdir() if item.name.endswith((".dist-info", ".egg-info", ".egg-link", ".pth"))
        )
    except OSError:
        return []


def _remembered(memory: Path) -> dict[str, Any]:
    try:
        document = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
