"""Untrusted recipes: access to credentials, executed programs, and text on the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.cli.untrusted_recipe import ANSWER, MARK, listening, write_interpreter, write_project
from tests.support.commands import ROOT, epbuild

pytestmark = [
    pytest.mark.slow,  # each test starts the real command
    pytest.mark.skipif(sys.platform == "win32", reason="a script stands for the interpreter here"),
]

SECRET = "tulip-bulb-42"
ASKING = (("plan",), ("explain", "*"), ("graph",), ("cache", "verify", "--remote"), ("run", "--no-compile"))


@pytest.mark.parametrize("arguments", ASKING, ids=" ".join)
def test_a_server_that_only_the_recipe_names_gets_no_credentials(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with listening() as (address, asked):
        write_project(tmp_path, address)
        done = epbuild(tmp_path, *arguments, EPBUILD_REMOTE_AUTHORIZATION=SECRET)
        assert asked, done.stderr
        assert not any(SECRET in headers for _, headers in asked)
        assert arguments[0] == "explain" or "EPBUILD_REMOTE_CACHE" in done.stdout + done.stderr

        asked.clear()
        epbuild(tmp_path, *arguments, EPBUILD_REMOTE_AUTHORIZATION=SECRET, EPBUILD_REMOTE_CACHE=address)
        assert any(SECRET in headers for _, headers in asked)


def everything_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


QUIET = (
    ("validate",),
    ("validate", "--json"),
    ("schema", "recipe"),
    ("inspect", "relu.onnx"),
    ("diff", "relu.onnx", "relu.onnx"),
    ("init", "relu.onnx", "-o", "new.yaml", "--ep", "qnn", "--target", "SM8750"),
    ("plan", "--no-exec", "--offline"),
    ("plan", "--no-exec", "--offline", "--json"),
    ("explain", "--no-exec", "--offline", "*"),
    ("graph", "--no-exec", "--offline", "--format", "dot"),
    ("log",),
    ("clean", "--dry-run"),
)


@pytest.mark.parametrize("arguments", QUIET, ids=" ".join)
def test_read_only_commands_start_no_program_and_no_connection(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with listening() as (address, asked):
        write_project(tmp_path, address)
        done = epbuild(tmp_path, *arguments, EPBUILD_REMOTE_CACHE=address)
        assert done.returncode == 0, done.stderr
        assert (asked, (tmp_path / MARK).exists()) == ([], False)


def test_plan_no_exec_reports_unknown_toolchains(tmp_path: Path) -> None:
    write_project(tmp_path)
    done = epbuild(tmp_path, "plan", "--no-exec")
    assert (
        "new  compile:main/phone/relu\n       the identity of the toolchain 'qnn' is unknown, because --no-exec starts no programs\n"
        in done.stdout
    )
    epbuild(tmp_path, "plan")
    assert (tmp_path / MARK).exists()
    (tmp_path / MARK).unlink()
    known = epbuild(tmp_path, "plan", "--no-exec")
    assert "unknown" not in known.stdout
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize(
    "answer", ["print('{}')", "print('[[[' * 50000)", "raise SystemExit(7)", "while True: print('x' * 9999)"]
)
def test_an_interpreter_that_answers_nonsense_is_named(tmp_path: Path, answer: str) -> None:
    write_project(tmp_path)
    write_interpreter(tmp_path, answer)
    done = epbuild(tmp_path, "plan")
    assert done.returncode == 3
    assert f"epbuild.yaml:4:3: error: the interpreter {tmp_path}/evil " in done.stderr
    assert "[EPB303]" in done.stderr


def test_a_package_model_is_found_without_importing_the_package(tmp_path: Path) -> None:
    recipe = write_project(tmp_path)
    package = tmp_path / "evil_package" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text(f"open({str(tmp_path / MARK)!r}, 'w')\n", encoding="utf-8")
    (tmp_path / "relu.onnx").rename(package / "relu.onnx")
    text = recipe.read_text(encoding="utf-8").replace("relu: relu.onnx", "relu: package:evil_package.inner/relu.onnx")
    recipe.write_text(text, encoding="utf-8")
    done = epbuild(tmp_path, "validate", PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert (done.returncode, (tmp_path / MARK).exists()) == (0, False), done.stderr


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\u2066 ##[error]told"
SHOWING = (
    ("plan",),
    ("plan", "--json"),
    ("explain", "*"),
    ("graph", "--format", "dot"),
    ("graph", "--format", "mermaid"),
    ("log", "compile:main/phone/relu"),
    ("report",),
    ("run",),
    ("run", "--keep-going", "--retry", "--junit", "junit.xml", "--sarif", "sarif.json", "--summary", "summary.md"),
    ("coverage",),
    ("coverage", "--markdown"),
)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project whose compiler fails and writes control sequences for terminals and CI services."""
    folder = tmp_path_factory.mktemp("failed")
    write_project(folder)
    lines = f"import sys\nif 'probe.py' in sys.argv[2]:\n    print({json.dumps(ANSWER)!r})\nelse:\n"
    told = (f"error: {HOSTILE}", "::error::told", "  ::add-mask::a")
    write_interpreter(folder, lines + f"    sys.stderr.write({chr(10).join(told)!r})\n    sys.exit(1)\n")
    done = epbuild(folder, "run")
    assert (done.returncode, "evil" in done.stderr) == (1, True), done.stderr
    return folder


@pytest.mark.parametrize("arguments", SHOWING, ids=" ".join)
@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}, {"GITHUB_ACTIONS": "true"}], ids=["plain", "colors", "actions"])
def test_compiler_output_cannot_control_terminals_or_workflows(
    arguments: tuple[str, ...], variables: dict[str, str], failed: Path
) -> None:
    done = epbuild(failed, *arguments, **variables)
    written = [path.read_text(encoding="utf-8") for path in failed.glob("*.*") if path.suffix in (".xml", ".json", ".md")]
    own = r"\x1b\[(?:[0-2]|3\d)m" if "FORCE_COLOR" in variables else "$^"
    for text in (re.sub(own, "", shown) for shown in (done.stdout, done.stderr, *written)):
        assert all(character.isprintable() or character in "\n" for character in text), text
        assert not re.search(r"^\s*::(?!(error|warning|notice)( [^:]*)?::\S* ?.*\[EPB\d+\]$)", text, re.MULTILINE), text
    if "--json" not in arguments:
        assert "##[error]" not in done.stdout


WRONG = {
    "model": ("relu: relu.onnx", "relu: ${env.TOKEN}.onnx"),
    "digest": ("relu: relu.onnx", "relu: {path: relu.onnx, sha256: '${env.TOKEN}'}"),
    "interpreter": ("interpreter: ./evil", "interpreter: ./${env.TOKEN}/python"),
    "packages": ("interpreter: ./evil", "packages: ['-${env.TOKEN}']"),
    "release": ("interpreter: ./evil", "packages: ['nosuch-${env.TOKEN}==1']"),
    "python": ("interpreter: ./evil", "packages: [a==1]\n    python: ${env.TOKEN}"),
    "option": ("soc_model: SM8750", "soc_model: ${env.TOKEN}"),
    "environment": ("provider_options:", "environment: {LICENSE: '${env.TOKEN}'}\n    provider_options:"),
    "group": ("models: [relu]", "models: ['${env.TOKEN}']"),
    "output": ("dist/${target}", "/${env.TOKEN}/${target}"),
    "cache": ("name: tiny", "name: tiny\ncache: {remote: 'https://${env.TOKEN}/x'}"),
    "address": ("relu: relu.onnx", "relu: {path: 'https://127.0.0.1:9/${env.TOKEN}', sha256: " + "a" * 64 + "}"),
}
TELLING = (
    ("validate",),
    ("validate", "--json"),
    ("plan",),
    ("plan", "--json"),
    ("explain", "--json", "*"),
    ("graph", "--format", "dot"),
    ("run", "--json"),
    ("run", "--junit", "junit.xml", "--sarif", "sarif.json", "--summary", "summary.md"),
    ("lock",),
    ("coverage",),
    ("report",),
    ("log",),
    ("clean", "--dry-run"),
    ("doctor", "--no-compile"),
    ("devices",),
)


@pytest.mark.gate
@pytest.mark.parametrize("place", WRONG)
def test_no_command_shows_the_value_of_a_variable(place: str, tmp_path: Path, exhaustive: bool) -> None:
    recipe = write_project(tmp_path)
    text = recipe.read_text(encoding="utf-8")
    assert WRONG[place][0] in text
    recipe.write_text(text.replace(*WRONG[place]), encoding="utf-8")
    lines = f"import sys\nif 'probe.py' in sys.argv[2]:\n    print({json.dumps(ANSWER)!r})\nelse:\n    sys.exit('no')\n"
    write_interpreter(tmp_path, lines)
    for arguments in TELLING if exhaustive else TELLING[[*WRONG].index(place) % 2 :: 2]:
        done = epbuild(tmp_path, *arguments, TOKEN=SECRET, UV_OFFLINE="1", EPBUILD_TOOLCHAIN_DIR=str(tmp_path / "made"))
        assert SECRET not in done.stdout + done.stderr, arguments
        assert "internal error" not in done.stderr
    for file in (tmp_path / name for name in ("junit.xml", "sarif.json", "summary.md")):
        assert not file.exists() or SECRET not in file.read_text(encoding="utf-8")
