"""Stress test of `inspect` and `verify` with tens of thousands of damaged artifacts in one process.

    python hostile_artifacts.py CORPUS WORK INPUTS SEED

CORPUS has one sound artifact in each folder. The last line on standard output is JSON: the number of inputs, the number
of each outcome, the inputs that ended in anything but an error of epbuild, the files opened outside the artifact, and
the peak of memory.
"""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from epbuild.catalog.catalog import entry, known_eps
from epbuild.core.errors import EpbuildError
from epbuild.onnxfile.edit.rewrite import relink
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.runtime import encryption
from epbuild.verify.artifact import find_artifacts
from epbuild.verify.inspection import inspect_files
from epbuild.verify.static import check_artifact

MOST_MEMORY = 500_000_000
SECRET = "secret.bin"
"""A file beside the artifact that must not be opened."""
NUMBERS = (b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x07", b"\x80" * 10, b"\x00", b"\x7f", b"\xff" * 12)
REFERENCES = (
    f"../{SECRET}", f"x/../../{SECRET}", f"/{SECRET}", "C:\\x", "..\\x", "", ".", "/", "a/", "linked", "loop", "x" * 300, "x" * 70_000,
    "\x00", "größe", "manifest.json", "\u202e", "\x1b[2J",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 70, 1e308, "", f"../{SECRET}", f"/{SECRET}", "linked", "x" * 5000, [], {}, [[]], {"a": 1}, ["x"], "\x00",
    "\ud800",
)  # fmt: skip
TRACES = 3
MANIFEST = "manifest.json"


class Watch:
    """Audit hook that records opened files and listed folders outside `inside`, while that is set."""

    def __init__(self) -> None:
        self.inside: Path | None = None
        self.outside: Counter[str] = Counter()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.inside is None or event not in {"open", "os.listdir", "os.scandir"} or isinstance(arguments[0], int):
            return
        real = os.path.realpath(os.fsdecode(arguments[0]))
        if not Path(real).is_relative_to(self.inside):
            self.outside[real] += 1


def spoil_bytes(content: bytes, chance: random.Random) -> bytes:
    """Damage `content` in one way that a disk, a network or an adversary can cause."""
    at, other = sorted((chance.randrange(len(content) + 1), chance.randrange(len(content) + 1)))
    kind = chance.randrange(8)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[other:]
    if kind == 2:
        return content[:other] + content[at:]
    if kind == 3:
        return content[:at] + chance.randbytes(chance.randrange(1, 20)) + content[at:]
    if kind == 4:
        return content[:at] + chance.choice(NUMBERS) + content[at + chance.randrange(3) :]
    if kind == 5:
        return content + content[at:other]
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def spoil_model(path: Path, chance: random.Random) -> None:
    """Change a model: any of its bytes, or the location of its context."""
    if chance.random() < 0.3:
        original = path.with_suffix(".original")
        path.rename(original)
        try:
            relink(
                original,
                path,
                dict.fromkeys(("llm.bin", *(file.name for file in path.parent.glob("*.bin"))), chance.choice(REFERENCES)),
            )
        except MalformedModel:
            shutil.copy(original, path)
        original.unlink()
    else:
        path.write_bytes(spoil_bytes(path.read_bytes(), chance))


def spoil_binary(path: Path, chance: random.Random) -> None:
    """Change or replace a context binary."""
    kind = chance.randrange(8)
    if kind > 5:
        path.write_bytes(spoil_bytes(path.read_bytes(), chance))
    elif kind == 5:
        path.write_bytes(b"")
    else:
        path.unlink()
        if kind == 0:
            path.mkdir()
        elif kind == 1:
            path.symlink_to(Path("..") / SECRET)
        elif kind == 2:
            path.symlink_to(path.name)
        elif kind == 3:
            os.mkfifo(path)


def spoil_manifest(path: Path, chance: random.Random) -> None:
    """Change a manifest: a value of its document, or its bytes."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if chance.random() < 0.2:
        path.write_bytes(spoil_bytes(path.read_bytes(), chance))
        return
    for _ in range(chance.choice((1, 1, 3))):
        places = list(_places(document))
        holder, key = chance.choice(places)
        if isinstance(holder, dict) and chance.random() < 0.2:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
    path.write_text(json.dumps(document), encoding="utf-8")


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in list(document.items() if isinstance(document, dict) else enumerate(document)):
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)


SPOIL: dict[str, Callable[[Path, random.Random], None]] = {
    ".onnx": spoil_model,
    ".bin": spoil_binary,
    ".json": spoil_manifest,
}


class Case:
    """A copy of one artifact of the corpus that can be damaged and restored."""

    def __init__(self, whole: Path, folder: Path) -> None:
        self.folder = folder
        self.held = {file.name: file.read_bytes() for file in whole.iterdir()}
        folder.mkdir()
        (folder / "linked").symlink_to(Path("..") / SECRET)
        (folder / "loop").symlink_to("loop")
        self.put_right(self.held)

    def spoil(self, chance: random.Random) -> list[str]:
        """Damage one or two files, or delete the manifest. Return the names of the changed files."""
        spoilt = chance.sample(sorted(self.held), min(len(self.held), chance.choice((1, 1, 2))))
        for name in spoilt:
            SPOIL[Path(name).suffix](self.folder / name, chance)
        if MANIFEST in self.held and MANIFEST not in spoilt and chance.random() < 0.3:
            (self.folder / MANIFEST).unlink()
            spoilt.append(MANIFEST)
        return spoilt

    def put_right(self, names: Iterable[str]) -> None:
        """Restore files."""
        for name in names:
            path = self.folder / name
            if path.is_dir():
                path.rmdir()
            elif path.is_symlink() or path.is_fifo():
                path.unlink()
            path.write_bytes(self.held[name])


def main(corpus: Path, work: Path, inputs: int, seed: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    chance = random.Random(seed)
    work.mkdir()
    (work / SECRET).write_bytes(b"secret soc_type=SM8750;arch=79")
    cases = [Case(whole, work / whole.name) for whole in sorted(corpus.iterdir())]
    watch = Watch()
    for ep in known_eps():  # the catalog is read once, from epbuild's own folder
        entry(ep)
    assert encryption.MAGIC  # the module is read in advance; epbuild reads it when it meets a file that is no model
    outcomes: Counter[str] = Counter()
    crashes: list[str] = []
    for case in cases:  # every module is read in advance too
        if (inspect(case.folder), verify(case.folder)) != ("inspected", "passed"):
            crashes.append(f"{case.folder.name} does not pass as it is")
        if MANIFEST in case.held:  # jsonschema is loaded when a manifest is invalid
            invalid = {**json.loads(case.held[MANIFEST]), "files": None}
            (case.folder / MANIFEST).write_text(json.dumps(invalid), encoding="utf-8")
            verify(case.folder)
            case.put_right([MANIFEST])
    for number in range(inputs):
        case = chance.choice(cases)
        spoilt = case.spoil(chance)
        watch.inside = Path(os.path.realpath(case.folder))
        for what in (inspect, verify):
            try:
                outcomes[what(case.folder)] += 1
            except EpbuildError as error:
                outcomes[error.problems[0].code] += 1
            except BaseException:  # noqa: BLE001 - that is what is looked for
                crashes.append(f"input {number}: {traceback.format_exc()}")
        watch.inside = None
        case.put_right(spoilt)
    # Not Linux's getrusage, which begins with the peak of the parent process.
    status = Path("/proc/self/status")
    peak = (
        int(status.read_text().partition("VmHWM:")[2].split()[0])
        if status.exists()
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )
    peak *= 1024
    found = {
        "inputs": inputs,
        "outcomes": outcomes,
        "crashes": len(crashes),
        "traces": crashes[:TRACES],
        "outside": watch.outside,
        "peak": peak,
    }
    sys.stdout.write(json.dumps(found) + "\n")


def inspect(folder: Path) -> str:
    """Run `epbuild inspect` and render its output."""
    json.dumps(inspect_files([folder]))
    return "inspected"


def verify(folder: Path) -> str:
    """Run `epbuild verify`."""
    findings = [finding for artifact in find_artifacts(folder) for finding in check_artifact(artifact)]
    json.dumps([asdict(finding) for finding in findings])
    return "failed" if any(finding.outcome == "failed" for finding in findings) else "passed"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
