"""Command line: all commands, and exit codes and messages for errors."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from epbuild import __version__
from epbuild.cli.completion import VARIABLE, answer_shell
from epbuild.cli.options import ClickException, format_sentence
from epbuild.core.errors import EpbuildError, Problem
from epbuild.core.file_use import CLOSE_PROGRAM, describe_use
from epbuild.core.host import is_broken_pipe, is_interrupt, is_path_too_long, list_interrupts
from epbuild.core.safepath import shorten_reference
from epbuild.core.shown import escape_sequences, format_path

INTERRUPTED = 130
_NO_MEMORY = ("can't start new thread", "failed to map segment")
"""Parts of messages with which Python and the dynamic loader report that memory is exhausted."""
USAGE = 2
_ENVIRONMENT = 3
_PANELS = {
    "Getting started": {
        "init": "Write a first recipe.",
        "add": "Add models or targets to a recipe.",
        "import": "Convert another tool's configuration to a recipe.",
        "doctor": "Check this machine for problems.",
        "devices": "Show the EPs of toolchains, and the devices of each EP.",
    },
    "Build": {
        "validate": "Check a recipe and its models without building.",
        "plan": "Show the steps that a build would run, and why.",
        "run": "Build everything that is out of date.",
        "explain": "Explain why a step would run.",
        "graph": "Draw the plan as a tree, SVG, DOT or Mermaid.",
        "log": "Print the log of a step's last run.",
        "coverage": "Show how much of each model runs on the EP, and why not more.",
        "measure": "Measure load time, latency and memory of compiled models.",
        "report": "Report coverage, sizes, times and accuracy of builds.",
    },
    "Artifacts": {
        "inspect": "Show the contents of EPContext models.",
        "verify": "Check artifacts, and optionally load and run their models.",
        "diff": "Compare two artifacts.",
        "bisect": "Find the nodes that fail to compile, or compute wrong numbers.",
        "relink": "Embed, extract, rename or move a context binary.",
        "merge": "Merge EPContext models into one.",
        "wrap": "Write EPContext models for a context binary of another tool.",
        "decrypt": "Write the plain form of an encrypted artifact.",
        "clean": "Remove emitted outputs.",
    },
    "Machines": {
        "lock": "Pin toolchains and remote models in epbuild.lock.",
        "cache": "Show or check the store, and manage a remote cache.",
        "gc": "Remove unused results from the store.",
        "worker": "Execute actions of other machines' builds.",
    },
    "Other": {
        "schema": "Print a JSON Schema.",
        "version": "Print the version of epbuild, and of the packages that it uses.",
    },
}
"""Commands with their short help, by the title of their section in `epbuild --help`."""
_COMMANDS = {name: text for commands in _PANELS.values() for name, text in commands.items()}
_SHARED_MODULES = {
    **dict.fromkeys(("inspect", "diff", "relink", "merge"), "artifacts"),
    **dict.fromkeys(("plan", "explain", "log"), "steps"),
    **dict.fromkeys(("run", "coverage", "measure"), "run"),
    **dict.fromkeys(("clean", "gc"), "cleaning"),
    **dict.fromkeys(("doctor", "devices"), "doctor"),
}
"""Modules that define several commands. All other commands have modules of their own names."""


class _Commands(TyperGroup):
    """Group of commands that imports a command's module only when the command runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Modules()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    # Typer would import all commands to read their help.
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, _COMMANDS))
        for title, commands in _PANELS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in commands.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        from typer._click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=text) for name, text in _COMMANDS.items() if name.startswith(incomplete)]


class _Modules(dict[str, Any]):
    """Mapping of command names to commands. A command is imported on lookup."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(_COMMANDS))

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        module = _SHARED_MODULES.get(name, f"{name}{'_' * iskeyword(name)}")
        command: Any = get_command(importlib.import_module(f"epbuild.cli.{module}").app)
        return command.commands[name] if name in _SHARED_MODULES else command


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"epbuild {__version__}")
        raise typer.Exit


_application = typer.Typer(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@_application.callback()
def _global_options(
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Build ONNX Runtime EPContext artifacts: one recipe in, verified and reproducible NPU models out."""


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Errors are printed to standard error, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # An EP's log may contain characters that the terminal's encoding lacks.
            stream.reconfigure(errors="backslashreplace")
    with contextlib.suppress(ValueError):  # Only the main thread may set a signal handler.
        for number in list_interrupts():
            signal.signal(number, _interrupt_once)
    try:
        command = get_command(_application)
        if VARIABLE in os.environ:
            answer_shell(command)
        with command.make_context("epbuild", _expand_help(arguments), color=False) as context:
            outcome = command.invoke(context)
    except typer.Exit as error:
        return error.exit_code
    except SystemExit as error:  # Typer ends a completion with SystemExit.
        return error.code if isinstance(error.code, int) else 0
    except ClickException as error:
        _print(f"error: {format_sentence(error)} See `epbuild --help`.")
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        return _report_interrupt()
    except Exception as error:  # noqa: BLE001 - users see tracebacks only with --debug
        if isinstance(error, OSError) and is_broken_pipe(error):
            return discard_output()
        code = _report_error(error)
        if "--debug" in arguments:
            traceback.print_exc()
        return code
    return outcome if isinstance(outcome, int) else 0


def _expand_help(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, with `help [COMMAND]` or an empty command line changed to `[COMMAND] --help`."""
    if arguments and arguments[0] != "help":
        return list(arguments)
    return [*arguments[1:], "--help"]


def _is_folder_gone() -> bool:
    """Return whether the current directory was removed. Errors about relative paths do not mention this cause."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return True
    return False


def _interrupt_once(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt for the first Ctrl-C, and ignore the signal afterwards, so that workers can be stopped."""
    for interrupt in list_interrupts():
        signal.signal(interrupt, signal.SIG_IGN)
    raise KeyboardInterrupt


def discard_output() -> int:
    """Discard all further output after the reader has closed standard output. Return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _report_interrupt() -> int:
    _print("interrupted; finished work is kept")
    return INTERRUPTED


def _report_error(error: Exception) -> int:
    """Print an error, and return the exit code."""
    match error:
        case EpbuildError():
            from epbuild.report.terminal.problems import print_errors

            print_errors(error.problems)
            return error.exit_code
        case OSError():
            _print_os_error(error)
        case MemoryError():
            _print("error: out of memory. Provide more memory, or check the limits of this process (`ulimit -a`).")
        case _ if is_interrupt(error):
            return _report_interrupt()
        case _ if any(sign in str(error) for sign in _NO_MEMORY):
            _print(f"error: out of memory: {error}. Check the limits of this process (`ulimit -a`).")
        case _:
            name = type(error).__name__
            _print(f"internal error: {name}: {error}. Please report it with the output of `epbuild --debug`.")
            return 1
    return _ENVIRONMENT


def _print_os_error(error: OSError) -> None:
    if is_path_too_long(error) and error.filename:
        from epbuild.report.terminal.problems import print_problems

        where = Path(shorten_reference(os.fsdecode(error.filename)))
        hint = "Shorten the path, or move the folder."
        print_problems([Problem("EPB516", "the path is longer than this system allows", where, hint)])
    elif isinstance(error, FileNotFoundError) and _is_folder_gone():
        _print("error: the current folder no longer exists. Change to another folder.")
    elif used := describe_use(error):
        _print(f"error: {used}. {CLOSE_PROGRAM}")
    else:
        place = f"{format_path(os.fsdecode(error.filename))}: " if error.filename else ""
        _print(f"error: {place}{error.strerror or error}")


def _print(text: str) -> None:
    sys.stderr.write(f"epbuild: {escape_sequences(text)}\n")
