"""Fingerprint of a toolchain: its Python, platform, packages and their files.

Hashing a few hundred MB of files in every run would take longer than all other work. So a fingerprint is remembered with the stat of every
file, the listing of every package folder, and the links in the paths. If any of these has changed, the environment is probed and hashed
again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, ValidationError, field, to_builtins

from epbuild.core.atomic import write_file
from epbuild.core.errors import Position, Problem, ToolchainError
from epbuild.core.records import convert
from epbuild.core.safepath import find_links
from epbuild.core.shown import format_path
from epbuild.toolchain.packages import (
    REPAIRED,
    FileState,
    Tree,
    get_state,
    hash_file_list,
    hash_files,
    is_library,
    list_package_files,
)
from epbuild.toolchain.process import run_program
from epbuild.worker.scripts import PROBE

FORMAT = 4
PROBE_SECONDS = 120
_MAX_ANSWER = 16 << 20
"""Maximum size of a probe's output in bytes. With 10,000 distributions, the output has 400 kB."""
_MAX_QUOTE = 500
_CHECK_INTERPRETER = "Check the toolchain's interpreter."


class Fingerprint(Struct, frozen=True, dict=True):
    """Identity of an environment. It contains no absolute paths, times or host names."""

    python: str
    """Implementation and minor version, such as `cpython-3.11`."""
    platform: str
    distributions: Mapping[str, str]
    libraries: Mapping[str, str]
    """SHA-256 of each shared library of ONNX Runtime and the EPs, by path relative to the packages' folder."""
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each other file in these packages, by path relative to the packages' folder."""

    def document(self, modules: Iterable[str], host: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the fingerprint as part of a key document, limited to the packages of `modules`. EPs of other targets are left out.

        The document lists each library, and one digest for the hundreds of other files of a package. `host` is the result of
        `describe_host`, for EPs whose output depends on the machine.
        """
        folders = tuple(sorted({module.rpartition(".")[2] for module in modules}))
        document = self._documents.get(folders)
        if document is None:
            document = self._documents[folders] = self._describe_packages(folders)
        return document if host is None else {**document, "host": dict(host)}

    @cached_property
    def _documents(self) -> dict[tuple[str, ...], dict[str, Any]]:
        """Documents without a host, by folders of packages. Most of the 10,000 targets that a recipe may have need the same packages."""
        return {}

    def _describe_packages(self, folders: Sequence[str]) -> dict[str, Any]:
        others = {folder: select_package_files(self.files, folder) for folder in folders}
        return {
            "python": self.python,
            "platform": self.platform,
            "distributions": dict(self.distributions),
            "libraries": {
                name: digest for folder in folders for name, digest in select_package_files(self.libraries, folder).items()
            },
            "files": {folder: hash_file_list(files) for folder, files in others.items() if files},
        }


class Observation(Struct, frozen=True):
    """Fingerprint, with the state of each file and folder when the fingerprint was computed or confirmed."""

    fingerprint: Fingerprint
    states: Mapping[str, FileState | None]


class ProbeAnswer(Struct, frozen=True):
    """Answer of `worker/probe.py`."""

    python: str
    platform: str
    distributions: dict[str, str]
    modules: dict[str, str | None]
    """Folder of each requested package, or None if it has no folder."""
    site: list[str]
    """Folders that Python imports from."""


class _Memory(Struct, frozen=True):
    """Remembered fingerprint. It is valid while the environment still matches the other fields."""

    format: int
    modules: list[str]
    links: dict[str, str]
    """Target of each link in the path of a file."""
    folders: dict[str, list[str]]
    """Names of the files and folders with metadata of installed distributions, by parent folder."""
    packages: dict[str, list[str]]
    """Files of each package, by the package's folder."""
    files: dict[str, list[int] | None]
    """State of each file, without its number of links."""
    fingerprint: Fingerprint


def select_package_files(files: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the files of a fingerprint that belong to the package in the folder named `folder`."""
    return {name: digest for name, digest in files.items() if name.partition("/")[0].removesuffix(REPAIRED) == folder}


class NotProbed(Exception):
    """Error for an environment without a valid remembered fingerprint, if its interpreter may not be started."""


def read_fingerprint(
    interpreter: Path, modules: Iterable[str], memory: Path, where: Position | None = None, *, may_run: bool = True
) -> Observation:
    """Return the fingerprint of `interpreter`'s environment. The remembered fingerprint is used if the environment is unchanged.

    `modules` are the packages that contain ONNX Runtime and the EPs. `memory` is the path of the remembered fingerprint. Raises
    ToolchainError (located at `where`) if the interpreter does not run. Raises NotProbed if the interpreter must run but `may_run` is
    false.
    """
    wanted = sorted(modules)
    remembered = _read_memory(memory)
    # A selection of steps may need only some of the remembered modules.
    if remembered is not None and set(wanted) <= set(remembered.modules):
        with contextlib.suppress(OSError):
            trees = {package: list_package_files(package) for package in remembered.packages}
            states = _get_states([*remembered.files, *remembered.folders], trees)
            if (
                {package: tree.files for package, tree in trees.items()} == remembered.packages
                and all(_select_stat(states[path]) == stat for path, stat in remembered.files.items())
                and all(_list_metadata(Path(path)) == listing for path, listing in remembered.folders.items())
                and find_links(remembered.files) == remembered.links
            ):
                return Observation(remembered.fingerprint, states)
    if not may_run:
        raise NotProbed
    return _compute_fingerprint(interpreter, wanted, memory, where)


def probe(
    interpreter: Path, modules: Iterable[str], where: Position | None = None, *, seconds: float = PROBE_SECONDS
) -> ProbeAnswer:
    """Run `worker/probe.py` in the environment and return its answer. Raises ToolchainError (EPB303)."""

    def make_error(why: str) -> ToolchainError:
        return ToolchainError(Problem("EPB303", f"the interpreter {interpreter} {why}", where, _CHECK_INTERPRETER))

    wanted = list(modules)
    try:
        with TemporaryDirectory(prefix="epbuild-probe-") as folder:
            command = [str(interpreter), "-I", str(PROBE), *wanted]
            done = run_program(command, Path(folder), timeout=seconds, max_bytes=_MAX_ANSWER)
    except OSError as error:
        raise make_error(f"does not run: {error.strerror or error}") from error
    if done.cause == "timed out":
        raise make_error(f"did not exit within {seconds:g} seconds")
    if done.cause == "wrote too much":
        raise make_error("printed more output than a Python interpreter would")
    if done.status != 0:
        lines = done.errors.decode("utf-8", "replace").strip().splitlines()
        raise make_error(f"could not be probed: {lines[-1][:_MAX_QUOTE] if lines else 'no output'}")
    try:
        # Packages may print text when Python starts, so the answer is the last line.
        return _read_answer(done.output.decode("utf-8", "replace").splitlines()[-1], wanted)
    except (IndexError, ValueError, ValidationError, RecursionError) as error:
        raise make_error("did not answer as a Python interpreter would") from error


def _read_answer(line: str, modules: list[str]) -> ProbeAnswer:
    """Parse and check a probe's answer. The interpreter may be any program, so other output raises ValueError or ValidationError."""
    answer = convert(json.loads(line), ProbeAnswer)  # not msgspec's JSON, which refuses paths that are not UTF-8
    if answer.modules.keys() != set(modules):
        raise ValueError(modules)
    for text in (answer.python, answer.platform, *answer.distributions, *answer.distributions.values()):
        text.encode("utf-8")
    for path in (*answer.site, *(folder for folder in answer.modules.values() if folder is not None)):
        if b"\0" in os.fsencode(path) or not Path(path).is_absolute():
            raise ValueError(path)
    return answer


def _compute_fingerprint(interpreter: Path, modules: list[str], memory: Path, where: Position | None) -> Observation:
    answer = probe(interpreter, modules, where)
    try:
        trees = {folder: list_package_files(folder) for folder in answer.modules.values() if folder}
        names = {
            Path(file).relative_to(Path(folder).parent).as_posix(): file for folder, tree in trees.items() for file in tree.files
        }
        files = list(dict.fromkeys([str(interpreter), *names.values()]))
        # The states are read before the files are hashed, so that a file that changes meanwhile is hashed again in the next run.
        links = find_links(files)
        folders = {path: _list_metadata(Path(path)) for path in answer.site}
        states = _get_states([*files, *folders], trees)
        digests = dict(zip(names, hash_files(names.values()), strict=True))
    except OSError as error:
        place, why = format_path(error.filename or interpreter), error.strerror or error
        message = f"cannot read {place}, which is part of the toolchain: {why}"
        hint = "Check the file's permissions, or reinstall its package."
        raise ToolchainError(Problem("EPB310", message, where, hint)) from error
    fingerprint = Fingerprint(
        answer.python,
        answer.platform,
        answer.distributions,
        {name: digest for name, digest in digests.items() if is_library(name)},
        {name: digest for name, digest in digests.items() if not is_library(name)},
    )
    packages = {folder: tree.files for folder, tree in trees.items()}
    stats = {path: _select_stat(states[path]) for path in files}
    document = to_builtins(_Memory(FORMAT, modules, links, folders, packages, stats, fingerprint))
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, not correctness
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_file(memory, json.dumps(document, sort_keys=True), durable=False)
    return Observation(fingerprint, states)


def _get_states(paths: Iterable[str], trees: Mapping[str, Tree]) -> dict[str, FileState | None]:
    """Return the current states of `paths` and of the folders in `trees`, by path."""
    folders = [folder for tree in trees.values() for folder in tree.folders]
    return {path: get_state(path) for path in (*paths, *folders)}


def _select_stat(state: FileState | None) -> list[int] | None:
    """Return the part of a file's state to remember: everything except its number of links."""
    return None if state is None else list(state[:4])


def _list_metadata(folder: Path) -> list[str]:
    """Return the names of the metadata of installed distributions. The names contain versions, so each installation changes them."""
    try:
        return sorted(
            item.name for item in folder.iterdir() if item.name.endswith((".dist-info", ".egg-info", ".egg-link", ".pth"))
        )
    except OSError:
        return []


def _read_memory(memory: Path) -> _Memory | None:
    try:
        remembered = convert(json.loads(memory.read_text(encoding="utf-8")), _Memory)
    except (OSError, ValueError, ValidationError):
        return None
    return remembered if remembered.format == FORMAT else None
