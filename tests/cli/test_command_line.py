"""Promises of every command: a meaningful exit code, one line for an error, and no traceback."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import io
import json
import os
import platform
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
from typer.main import get_command

from epbuild import __version__
from epbuild.__main__ import _write_utf_8
from epbuild.cli import app
from epbuild.cli.app import INTERRUPTED, execute
from epbuild.core.errors import (
    BuildError,
    EnvironmentFailure,
    EpbuildError,
    PlanError,
    Problem,
    RecipeError,
    StoreError,
    ToolchainError,
    VerifyError,
)
from epbuild.session.planning import read_plan
from tests.support.moments import at_each_call

COMMANDS = list(app._COMMANDS)
IS_INSTALLED = any(metadata.distributions(name="epbuild"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, list[str]]:
    """Return the exit code, standard output, and the lines of standard error."""
    code = execute(arguments)
    out, error = capsys.readouterr()
    return code, out, error.splitlines()


def raising(error: BaseException) -> AbstractContextManager[None]:
    """Make `epbuild validate` raise in the block."""

    def break_off(call: object) -> None:
        raise error

    return at_each_call(read_plan, break_off)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"], []])
def test_help_lists_every_command_with_its_description(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, error = run(capsys, *arguments)
    assert (code, error) == (0, [])
    for name, text in app._COMMANDS.items():
        assert name in out
        assert text in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_has_a_help_page(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, error = run(capsys, name, "--help")
    assert (code, error) == (0, [])
    assert out.startswith(f"Usage: epbuild {name}")


def test_an_interrupt_that_a_lock_replaces_by_its_own_error_is_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(call: object) -> None:
        lock = threading.Lock()
        with lock:  # as an interrupted wait of a condition leaves it
            lock.release()
            raise KeyboardInterrupt

    with at_each_call(read_plan, interrupt):
        assert run(capsys, "validate") == (INTERRUPTED, "", ["epbuild: interrupted; finished work is kept"])


def test_help_of_a_command_is_its_help_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "help", "run") == run(capsys, "run", "--help")
    code, _, [line] = run(capsys, "help", "complie")
    assert (code, line.partition(".")[0]) == (2, "epbuild: error: No such command 'complie'")


@pytest.mark.parametrize("arguments", [["--version"], ["-V"], ["version"]])
def test_version_prints_the_version(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run(capsys, *arguments) == (0, f"epbuild {__version__}\n", [])


def test_the_json_version_has_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run(capsys, "version", "--json")
    document = json.loads(out)
    assert (code, error, document["epbuild"]) == (0, [], __version__)
    # A checkout that is not installed, as under wine, does not know its packages.
    assert document["packages"].get("msgspec") == (msgspec.__version__ if IS_INSTALLED else None)
    assert "pytest" not in document["packages"]
    assert document["system"] == platform.platform()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["complie"], "No such command 'complie'"),
        (["run", "--jbos", "2"], "No such option"),
        (["run", "--jobs", "0"], "Invalid value for '--jobs'"),
        (["inspect"], "Missing argument 'FILE...'"),
        (["expalin"], "No such command 'expalin'. Did you mean 'explain', 'relink'?"),
        (["cache", "veryfy"], "No such command 'veryfy'. Did you mean 'verify'?"),
        (["run", "--jbos", "2"], "No such option '--jbos'. Did you mean '--jobs' or '--json'?"),
        (["verify", "dist", "--device", "tpu"], "Invalid value for '--device': 'tpu' is not one of 'cpu', 'gpu', 'npu'."),
        (
            ["gc", "--max-size", "many"],
            "Invalid value for '--max-size': invalid size 'many'. Write a number and one of the units: B,",
        ),
        (["schema", "nope"], "Invalid value for '[recipe|manifest|catalog|report|doctor]': expected one of 'recipe', "),
        (["init", "nowhere"], "'nowhere' does not exist: name a folder of models, or model files and globs"),
        (["explain"], "Missing argument '[RECIPE] STEP...'"),
        (["explain", "a.yaml"], "'a.yaml' is a recipe: name a step as well, such as 'compile:*'."),
        (["log", "compile:a", "compile:b"], "expected one step, found 2: compile:a, compile:b."),
        (
            ["verify", "dist", "--seed", "0"],
            "--recipe, --source, --inputs, --seed, --samples, --range, --metric, --atol and --rtol require ",
        ),
        (
            ["verify", "dist", "--load", "--seed", "3"],
            "--recipe, --source, --inputs, --seed, --samples, --range, --metric, --atol and --rtol require ",
        ),
        (
            ["verify", "dist", "--timeout", "10m"],
            "--strict, --from-memory, --interpreter, --device, --option, --custom-ops and --timeout require ",
        ),
        (["verify", "dist", "--numbers", "--set", "vars.a=b"], "--set changes values of the recipe that --recipe names: "),
    ],
)
def test_a_usage_error_is_one_line_with_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    code, out, [line] = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert line.startswith(f"epbuild: error: {words}")
    assert line.endswith("See `epbuild --help`.")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RecipeError, 2),
        (PlanError, 2),
        (ToolchainError, 3),
        (BuildError, 1),
        (EnvironmentFailure, 3),
        (StoreError, 3),
        (VerifyError, 1),
    ],
)
def test_an_error_is_one_line_with_the_exit_code_of_its_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: type[EpbuildError], code: int
) -> None:
    with raising(error(Problem("EPB999", "it broke", None, "Mend it."))):
        assert run(capsys, "validate") == (code, "", ["epbuild: error: it broke. Mend it. [EPB999]"])


def test_every_problem_of_an_error_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with raising(RecipeError(Problem("EPB101", "one"), Problem("EPB102", "two"))):
        assert len(run(capsys, "validate")[2]) == 2


def test_a_missing_recipe_causes_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, [line] = run(capsys, "run", "no-such-recipe.yaml")
    assert (code, out) == (2, "")
    assert "no-such-recipe.yaml" in line


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with raising(PlanError(Problem("EPB201", "it broke"))):
        code, _, error = run(capsys, "--debug", "validate")
    assert code == 2
    assert error[0] == "epbuild: error: it broke. [EPB201]"
    assert "Traceback (most recent call last):" in error


def test_an_interrupted_command_prints_a_line_and_exits_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with raising(KeyboardInterrupt()):
        code, out, error = run(capsys, "validate")
    assert (code, out) == (130, "")
    assert [line for line in error if line] == ["epbuild: interrupted; finished work is kept"]


@pytest.mark.skipif(sys.platform == "win32", reason="imitates Windows")
def test_ctrl_break_on_windows_interrupts_like_ctrl_c(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    monkeypatch.setattr(_signal, "SIGBREAK", signal.SIGUSR1, raising=False)
    try:
        with at_each_call(read_plan, lambda arguments: signal.raise_signal(signal.SIGUSR1)):
            code, out, error = run(capsys, "validate")
        assert signal.getsignal(signal.SIGUSR1) == signal.getsignal(signal.SIGINT) == signal.SIG_IGN, "a second one is ignored"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (code, out, [line for line in error if line]) == (130, "", ["epbuild: interrupted; finished work is kept"])


def test_an_error_of_the_operating_system_names_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with raising(PermissionError(13, "Permission denied", "epbuild.yaml")):
        assert run(capsys, "validate") == (3, "", ["epbuild: error: epbuild.yaml: Permission denied"])


@pytest.mark.parametrize(("number", "of_windows"), [(errno.ENAMETOOLONG, None), (errno.ENOENT, 206)])
def test_a_path_that_is_too_long_is_an_error_with_code_and_hint(
    capsys: pytest.CaptureFixture[str], number: int, of_windows: int | None
) -> None:
    refused = OSError(number, "File name too long", "x" * 5000)
    refused.winerror = of_windows  # type: ignore[attr-defined]  # exists only on Windows
    with raising(refused):
        code, out, error = run(capsys, "validate")
    words = "error: the path is longer than this system allows. Shorten the path, or move the folder. [EPB516]"
    assert (code, out, error) == (3, "", [f"{'x' * 256}…: {words}"])


def test_a_closed_output_pipe_causes_no_traceback() -> None:
    process = subprocess.Popen([sys.executable, "-m", "epbuild", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_a_closed_output_pipe_on_windows_is_no_error(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(1), "w", encoding="utf-8"))
    with raising(OSError(errno.EINVAL, "Invalid argument")):
        assert execute(["validate"]) == 1
    with raising(OSError(errno.EINVAL, "Invalid argument", "epbuild.yaml")):
        assert execute(["validate"]) == 3
    assert capfd.readouterr().err == "epbuild: error: epbuild.yaml: Invalid argument\n"


def test_piped_output_on_windows_is_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="cp1252"))
    _write_utf_8()
    for stream in (sys.stdout, sys.stderr):
        stream.write("größe 模型")
        stream.flush()
        assert stream.buffer.getvalue().decode() == "größe 模型"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", [[], *([name] for name in COMMANDS), ["cache", "verify"]])
def test_every_help_page_is_plain_text_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, out, _ = run(capsys, *name, "--help")
    assert max(map(len, out.splitlines())) <= 80
    assert out.isascii()
    assert not set("\x1b\b{\\") & set(out)
    words = " ".join(out.split())
    command = get_command(app._application)
    for part in name:
        command = command.get_command(None, part)  # type: ignore[attr-defined]
    for parameter in command.params:
        assert " ".join((getattr(parameter, "help", None) or "?").split()) in words
    for paragraph in str(command.help).split("\n\n"):
        assert " ".join(paragraph.split()) in words


def test_the_help_of_run_shows_exit_codes_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "run", "--help")[1].splitlines()
    table = lines[lines.index("  Exit codes:") + 1 :]
    assert [line.split()[0] for line in table if line[4] != " "] == ["0", "1", "2", "3", "130"]


def test_help_imports_no_library_that_only_builds_need() -> None:
    code = """if True:
        import sys
        from epbuild.cli.app import execute
        execute(["--help"])
        sys.exit(", ".join({"onnx", "onnxruntime", "numpy", "rich", "yaml", "jsonschema"} & sys.modules.keys()))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no shell that closes a stream")
@pytest.mark.parametrize(("redirection", "code"), [(">&-", 0), ("2>&-", 0), ("> /dev/full", 3)])
def test_a_closed_or_full_stream_sets_the_exit_code_without_a_traceback(redirection: str, code: int) -> None:
    if redirection.endswith("full") and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    command = f"'{sys.executable}' -m epbuild schema {redirection}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == (1 if code else 0)
