"""The Tab key, in a real bash with the script that `--install-completion` installs."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epbuild.cli.completion import join_words
from tests.support.commands import RECIPE, environment, epbuild, write_model

pytestmark = pytest.mark.slow

STEP = "compile:main/phone/relu"
EMIT = "emit:main/phone/directory"
SECONDS = 30


@pytest.mark.parametrize(
    ("parts", "current", "words", "word"),
    [
        (["epbuild", ""], 1, ["epbuild", ""], 1),
        (["epbuild", "run", "emit", ":", "dec"], 4, ["epbuild", "run", "emit:dec"], 2),
        (["epbuild", "run", "emit", ":"], 3, ["epbuild", "run", "emit:"], 2),
        (["epbuild", "run", "emit", ":", "a", "b"], 5, ["epbuild", "run", "emit:a", "b"], 3),
        (["epbuild", "run", "emit", ":", "a", ""], 5, ["epbuild", "run", "emit:a", ""], 3),
        (["epbuild", "run", "--set", "=", "vars.a", "=", "b", "x"], 7, ["epbuild", "run", "--set=vars.a=b", "x"], 3),
        (["epbuild", ":"], 1, ["epbuild", ":"], 1),
        (["epbuild", "run"], 2, ["epbuild", "run"], 2),
    ],
)
def test_words_split_by_bash_are_joined_again(parts: list[str], current: int, words: list[str], word: int) -> None:
    assert join_words(parts, current) == (words, word)


class Bash:
    """An interactive bash in a terminal, in `folder`, that has read the scripts installed below `home`."""

    def __init__(self, folder: Path, home: Path) -> None:
        import pty  # imported here, as not every system has this module

        programs = home / "bin"
        programs.mkdir()
        program = programs / "epbuild"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m epbuild "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            os.chdir(folder)
            path = f"{programs}{os.pathsep}{os.environ['PATH']}"
            variables = environment(folder, HOME=str(home), PATH=path, TERM="dumb", INPUTRC=os.devnull, PS1="", COLUMNS="500")
            os.execvpe("bash", ["bash", "--noprofile", "-i"], variables)
        # Readline echoes the input. Therefore the input spells the end mark differently than the output.
        self._line("bind 'set enable-bracketed-paste off'; show() { printf '<%s>' \"$@\"; echo; echo do''ne; }; show ready")
        self._answer()

    def _line(self, text: str) -> None:
        os.write(self._terminal, f"{text}\n".encode())

    def _answer(self) -> list[str]:
        seen, end = "", time.monotonic() + SECONDS
        while not seen.endswith("\r\ndone\r\n"):
            assert time.monotonic() < end, seen
            if select.select([self._terminal], [], [], 0.1)[0]:
                seen += os.read(self._terminal, 1 << 16).decode()
        return seen.splitlines()[-2].strip("<>").split("><")

    def tab(self, text: str) -> list[str]:
        """Type `text` and the Tab key, and return the words of the completed line."""
        os.write(self._terminal, f"{text}\t".encode())
        self._line("\x01show \x05")
        return self._answer()

    def close(self) -> None:
        os.close(self._terminal)
        os.waitpid(self.pid, 0)


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bash]:
    if shutil.which("bash") is None or sys.platform == "win32":
        pytest.skip("there is no bash here")
    folder, home = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("home")
    write_model(folder / "relu.onnx")
    (folder / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "second recipe.yaml").write_text(RECIPE.replace("relu: ", "other: ").replace("[relu]", "[other]"), encoding="utf-8")
    (folder / "compose.yaml").write_text("services: {}\n", encoding="utf-8")
    (folder / "sub").mkdir()
    (folder / "sub" / "third.yml").write_text(RECIPE, encoding="utf-8")
    done = epbuild(folder, "--install-completion", "bash", HOME=str(home), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    shell = Bash(folder, home)
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("epbuild val", ["epbuild", "validate"]),
        ("epbuild run --rebu", ["epbuild", "run", "--rebuild-and-compare"]),
        ("epbuild verify dist --device n", ["epbuild", "verify", "dist", "--device", "npu"]),
        ("epbuild run epb", ["epbuild", "run", "epbuild.yaml"]),
        ("epbuild validate sec", ["epbuild", "validate", "second recipe.yaml"]),
        ("epbuild plan sub/", ["epbuild", "plan", "sub/third.yml"]),
        ("epbuild plan -r sub/", ["epbuild", "plan", "-r", "sub/third.yml"]),
        ("epbuild plan --recipe=sub/", ["epbuild", "plan", "--recipe=sub/third.yml"]),
        ("epbuild run su", ["epbuild", "run", "sub/"]),
        ("epbuild run comp", ["epbuild", "run", STEP]),  # but not compose.yaml, which is no recipe
        ("epbuild run compile:", ["epbuild", "run", STEP]),
        ("epbuild run compile:ma", ["epbuild", "run", STEP]),
        ("epbuild run 'compile:ma", ["epbuild", "run", STEP]),
        ("epbuild explain epbuild.yaml emi", ["epbuild", "explain", "epbuild.yaml", EMIT]),
        (
            "epbuild log second\\ recipe.yaml compile:main/phone/",
            ["epbuild", "log", "second recipe.yaml", "compile:main/phone/other"],
        ),
        (f"epbuild run {STEP} e", ["epbuild", "run", STEP, EMIT]),
        (
            "epbuild clean -r 'second recipe.yaml' comp",
            ["epbuild", "clean", "-r", "second recipe.yaml", "compile:main/phone/other"],
        ),
        ("epbuild run nowhere.yaml comp", ["epbuild", "run", "nowhere.yaml", "compose.yaml"]),  # files, as without completion
    ],
)
def test_tab_completes_commands_options_recipes_and_steps(bash: Bash, typed: str, words: list[str]) -> None:
    assert bash.tab(typed) == words
