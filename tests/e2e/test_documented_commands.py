"""Every command of every document, run and compared with the output that the document shows.

A document gives the reason for each block that is not run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import warm_start
from tests.support.console_blocks import Command, Shell, Unrun, missing, parts
from tests.support.projects import RECIPES, Project, copy_of_quickstart, toolchain_python
from tests.support.quick_builds import write_project
from tests.support.windows import need_wine

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    if "```console" in path.read_text(encoding="utf-8")
)
PROGRAMS = Path(sys.executable).parent
OFTEN_THERE = {"jq"}
"""Programs that documents use, and that a machine may lack."""
NOT_RUN = 27
"""Number of blocks that are not run. It must not grow."""
UNDER_WINE = ("README.md", "docs/getting-started/tutorial.md")
"""Documents whose commands also run under wine. There, a compile takes 30 times as long."""
WINE_EPBUILD = f"""\
#!{sys.executable}
import os, pathlib, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support.windows import run_epbuild
sys.exit(run_epbuild(sys.argv[1:], pathlib.Path.cwd(), os.environ, sys.stdout.buffer, sys.stderr.buffer))
"""
"""Program `epbuild` that runs under wine."""


@dataclass
class Machine:
    """Folder in which the commands of a document run in order, as a reader would run them."""

    folder: Path
    """Folder of this document, with a folder for each project."""
    stores: dict[str, Path]
    programs: Path = PROGRAMS
    """Folder with the program `epbuild`."""
    project: Project | None = None
    environment: dict[str, str] = field(default_factory=dict)
    cwd: Path = Path()
    count: int = 0
    code: int = 0
    """Exit code of the last command."""

    def enter(self, kind: str) -> None:
        """Copy `quickstart`, `quick` or `checkout` with a store that has its compiled models. `new_...`: with an empty store."""
        self.count += 1
        folder, cache = self.folder / str(self.count) / "work", self.folder / str(self.count) / "cache"
        name = kind.removeprefix("new_")
        folder.parent.mkdir()
        if name == "quickstart":
            copy_of_quickstart(folder, cache, recipe=(RECIPES / "quickstart.yaml").read_text(encoding="utf-8"))
        elif name == "checkout":
            shutil.copytree(RECIPES, folder / "recipes", ignore=shutil.ignore_patterns("dist", ".epbuild", "__pycache__"))
        elif name == "quick":
            write_project(Project(folder, cache))
        else:
            assert name == "empty", f"there is no project {name}"
            folder.mkdir()
        store = self.stores.get("quick" if name == "quick" else "quickstart")
        if name == kind and name != "empty" and store is not None:
            shutil.copytree(store, cache)
        project = Project(folder, cache)
        own = {"PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}", "RECIPES": str(RECIPES), "ROOT": str(ROOT)}
        own["QNN_PYTHON"] = str(toolchain_python("onnxruntime-qnn"))
        self.code = 0
        self.project, self.environment, self.cwd = project, {**project.command()[1], **own}, folder

    def run(self, text: str) -> tuple[int, str]:
        """Run a command, and return its exit code and output. Folder and variables persist for the next command."""
        assert self.project is not None, "no comment before the first block has the project that it is run in"
        text = text.removeprefix("python3 bootstrap.py ")
        with tempfile.TemporaryFile() as output:
            words = shlex.split(text, comments=True)
            if self.programs == PROGRAMS and words[:1] == ["epbuild"] and not re.search(r"[|<>;&$`]", text):
                process = warm_start.start(words[1:], self.cwd, self.environment, output=output, errors=output)
                code = process.wait(300)
            else:
                code = self._shell(text, output.fileno())
            output.seek(0)
            self.code = code
            printed = output.read().decode("utf-8")
            # Windows separates folders with a backslash.
            return code, printed if self.programs == PROGRAMS else printed.replace("\\", "/")

    def _shell(self, text: str, output: int) -> int:
        state = self.folder / "state"
        script = f"trap '{{ pwd; env -0; }} > {shlex.quote(str(state))}' EXIT\n(exit {self.code})\n{text}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=300 if self.programs == PROGRAMS else None,
            check=False,
        )
        folder, _, variables = state.read_text(encoding="utf-8").partition("\n")
        self.cwd = Path(folder)
        self.environment = dict(one.split("=", 1) for one in variables.split("\0") if "=" in one)
        return done.returncode


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_show_the_real_output_of_their_commands(
    name: str, tmp_path: Path, quickstart_store: Path, quick_store: Path
) -> None:
    check_document(name, Machine(tmp_path, {"quickstart": quickstart_store, "quick": quick_store}))


@pytest.mark.exhaustive
@need_wine()
@pytest.mark.parametrize("name", UNDER_WINE)
def test_commands_print_the_documented_output_under_wine(name: str, tmp_path: Path) -> None:
    program = tmp_path / "programs" / "epbuild"
    program.parent.mkdir()
    program.write_text(WINE_EPBUILD, encoding="utf-8")
    program.chmod(0o755)
    check_document(name, Machine(tmp_path, {}, program.parent))


def check_document(name: str, machine: Machine) -> None:
    """Run the commands of a document, and compare their output with the document."""
    wrong = []
    for part in parts(ROOT / name):
        if isinstance(part, Shell):
            if part.project is not None:
                machine.enter(part.project)
            code, printed = machine.run(f"set -e; {part.lines}") if part.lines else (0, "")
            assert code == 0, f"{name}: {part.lines}: {printed}"
        elif isinstance(part, Command) and all(map(shutil.which, OFTEN_THERE.intersection(part.text.split()))):
            code, printed = machine.run(part.text)
            failed = [f"exit code {code}"] if code and not part.shown else missing(part.shown, printed) if part.shown else []
            if failed:
                wrong += [f"{name}:{part.line}: {part.text}", *failed, "--- what it printed:", printed]
    assert not wrong, "\n".join(wrong)


def test_few_blocks_are_skipped_and_each_skip_has_a_reason() -> None:
    left = {f"{name}:{part.line}": part.reason for name in DOCUMENTS for part in parts(ROOT / name) if isinstance(part, Unrun)}
    assert all(left.values())
    assert len(left) <= NOT_RUN, left
