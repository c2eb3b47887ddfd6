"""What a toolchain is, for a key: its Python, its platform, its packages, and the bytes of ONNX Runtime's and the EP's libraries.

Hashing a few hundred MB of libraries at every run would cost more than all else, so a fingerprint is kept with the stat of every library
and the listing of every package folder; when any of those differs, the environment is probed and hashed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epbuild.errors import Position, Problem, ToolchainError
from epbuild.host import cpu_name

FORMAT = 3
PROBE_SECONDS = 120
_PROBE = Path(__file__).parent.parent / "worker" / "probe.py"
_CHECK_INTERPRETER = "Check the toolchain's interpreter."
_LIBRARIES = ".libs"
_LIBRARY_SUFFIXES = (".so", ".dll", ".pyd", ".dylib")


@dataclass(frozen=True)
class Fingerprint:
    """The identity of an environment, free of paths, times and host names."""

    python: str
    """Implementation and minor version, such as `cpython-3.11`."""
    platform: str
    distributions: Mapping[str, str]
    libraries: Mapping[str, str]
    """SHA-256 of each shared library of ONNX Runtime and the EPs, by its name below the package folder's parent."""
    host_cpu: str

    def document(self, modules: Iterable[str], *, host: bool) -> dict[str, Any]:
        """The fingerprint as a key holds it, with the libraries of those `modules` alone: not of EPs that other targets use.

        `host` adds the CPU, for EPs whose output depends on it.
        """
        folders = {module.rpartition(".")[2] for module in modules}
        document: dict[str, Any] = {
            "python": self.python,
            "platform": self.platform,
            "distributions": dict(self.distributions),
            "libraries": {
                name: digest
                for name, digest in self.libraries.items()
                if name.partition("/")[0].removesuffix(_LIBRARIES) in folders
            },
        }
        if host:
            document["host_cpu"] = self.host_cpu
        return document


def fingerprint(interpreter: Path, modules: Iterable[str], memory: Path, where: Position | None = None) -> Fingerprint:
    """The fingerprint of `interpreter`'s environment, whose `modules` are the packages that hold ONNX Runtime and the EPs.

    `memory` is the file that keeps the last answer. Raises ToolchainError, which points at `where`, when the interpreter does not run.
    """
    wanted = sorted(modules)
    remembered = _read(memory)
    if (
        remembered.get("format") == FORMAT
        and set(wanted) <= set(remembered.get("modules", ()))  # some steps alone may need fewer
        and all(_stat(Path(path)) == stat for path, stat in remembered["files"].items())
        and all(_listing(Path(path)) == listing for path, listing in remembered["folders"].items())
        and all(_names(_libraries(Path(path))) == names for path, names in remembered["packages"].items())
    ):
        return Fingerprint(**remembered["fingerprint"], host_cpu=cpu_name())
    return _take(interpreter, wanted, memory, where)


def watched(memory: Path) -> list[Path]:
    """The files and folders that the fingerprint in the file `memory` came from: while their stats last, so does the fingerprint."""
    remembered = _read(memory)
    packages = [Path(package) for package in remembered.get("packages", ())]
    folders = (Path(root) for package in packages for top in _with_libraries(package) for root, _, _ in os.walk(top))
    return [memory, *map(Path, remembered.get("files", ())), *map(Path, remembered.get("folders", ())), *folders]


def probe(interpreter: Path, modules: Iterable[str], where: Position | None = None) -> dict[str, Any]:
    """Run `worker/probe.py` in the environment and return what it says; raises ToolchainError when it cannot."""
    command = [str(interpreter), "-I", str(_PROBE), *modules]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"the interpreter {interpreter} does not run: {error}"
        raise ToolchainError(Problem("EPB303", message, where, _CHECK_INTERPRETER)) from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        message = f"the interpreter {interpreter} could not be probed: {last}"
        raise ToolchainError(Problem("EPB303", message, where, _CHECK_INTERPRETER))
    try:
        # Packages may print when Python starts; the answer is the last line.
        document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        message = f"the interpreter {interpreter} ran and did not answer as Python does"
        raise ToolchainError(Problem("EPB303", message, where, _CHECK_INTERPRETER)) from error
    return document


def _take(interpreter: Path, modules: list[str], memory: Path, where: Position | None) -> Fingerprint:
    seen = probe(interpreter, modules, where)
    packages = {folder: _libraries(Path(folder)) for folder in seen["modules"].values() if folder}
    libraries = {path.relative_to(Path(folder).parent).as_posix(): path for folder, paths in packages.items() for path in paths}
    stats = {str(path): _stat(path) for path in libraries.values()}
    stats[str(interpreter)] = _stat(interpreter)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        digests = dict(zip(libraries, pool.map(_digest, libraries.values()), strict=True))
    taken = Fingerprint(seen["python"], seen["platform"], seen["distributions"], digests, cpu_name())
    document = {
        "format": FORMAT,
        "modules": modules,
        "files": stats,
        "folders": {path: _listing(Path(path)) for path in seen["site"]},
        "packages": {folder: _names(paths) for folder, paths in packages.items()},
        "fingerprint": {
            "python": taken.python,
            "platform": taken.platform,
            "distributions": taken.distributions,
            "libraries": taken.libraries,
        },
    }
    _write(memory, document)
    return taken


def _libraries(folder: Path) -> list[Path]:
    """The shared libraries inside a package folder, and in the folder that goes with it."""
    files = (Path(root, name) for top in _with_libraries(folder) for root, _, names in os.walk(top) for name in names)
    return sorted(path for path in files if _is_library(path.name) and path.is_file())


def _with_libraries(folder: Path) -> tuple[Path, Path]:
    """A package folder, and the `.libs` folder that wheel repair tools put beside it."""
    return folder, folder.with_name(f"{folder.name}{_LIBRARIES}")


def _names(paths: Iterable[Path]) -> list[str]:
    return [str(path) for path in paths]


def _is_library(name: str) -> bool:
    return name.endswith(_LIBRARY_SUFFIXES) or ".so." in name


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stat(path: Path) -> list[int] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]


def _listing(folder: Path) -> list[str]:
    """The names of installed distributions' metadata: they carry the version, so they change with every install."""
    try:
        return sorted(
            item.name for item in folder.iterdir() if item.name.endswith((".dist-info", ".egg-info", ".egg-link", ".pth"))
        )
    except OSError:
        return []


def _read(memory: Path) -> dict[str, Any]:
    try:
        document = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _write(memory: Path, document: Mapping[str, Any]) -> None:
    temporary = memory.with_name(f"{memory.name}.{os.getpid()}")
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(document, sort_keys=True), encoding="utf-8")
        temporary.replace(memory)
    except OSError:  # only a memory: an unwritable cache costs time, not correctness
        with contextlib.suppress(OSError):
            temporary.unlink()
