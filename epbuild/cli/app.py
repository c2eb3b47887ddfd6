"""The command line as a whole: which commands there are, and how what they raise becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence

import click

from epbuild import __version__
from epbuild.errors import EpbuildError

INTERRUPTED = 130
USAGE = 2
_ENVIRONMENT = 3
_COMMANDS = {
    "init": "Write a recipe to start from.",
    "validate": "Check a recipe and the models that it names.",
    "plan": "Show the steps, the state of each, and why it would run.",
    "run": "Build what is out of date.",
    "explain": "Say why a step would run: what changed, and from what.",
    "inspect": "Show what is inside an EPContext model.",
    "verify": "Check artifacts: whole, right, loadable, right in numbers.",
    "diff": "Say what differs between two artifacts, in which sense.",
    "relink": "Embed, extract, rename or move a context binary.",
    "merge": "Glue EPContext models into one.",
    "lock": "Write down what toolchains and remote models are, exactly.",
    "log": "Print what the EP said while a step was compiled.",
    "schema": "Print a JSON Schema, for editors and for checks of one's own.",
    "clean": "Remove what was emitted.",
    "gc": "Remove from the store what no build uses, the oldest first.",
    "cache": "Show what is in the store, or check all of it.",
}


class _Commands(click.Group):
    """The commands by name; a command's module is imported when it is the one that was asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"epbuild.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Click would import every command to read its help.
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="epbuild", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def _application(debug: bool) -> None:
    """Build ONNX Runtime EPContext artifacts: one recipe in, verified and reproducible NPU models out."""


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; whatever goes wrong is told on standard error, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What an EP says must not fail on the encoding of somebody's terminal.
            stream.reconfigure(errors="backslashreplace")
    with contextlib.suppress(ValueError):  # outside the main thread, which alone is interrupted
        signal.signal(signal.SIGINT, _interrupt_once)
    try:
        outcome = _application.main(list(arguments) or ["--help"], prog_name="epbuild", standalone_mode=False)
    except EpbuildError as error:
        from epbuild.report import tell_count, tell_problems

        tell_problems(error.problems)
        tell_count(error.problems)
        return _failed(error.exit_code, arguments)
    except click.ClickException as error:
        _say(f"error: {error.format_message().rstrip('.')}. See `epbuild --help`.")
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted; what was finished is kept")
        return INTERRUPTED
    except BrokenPipeError:
        return abandon_output()
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _say(f"error: {place}{error.strerror or error}")
        return _failed(_ENVIRONMENT, arguments)
    except MemoryError:
        _say("error: there is not enough memory to go on. Give this process more, or check its limits (`ulimit -a`).")
        return _failed(_ENVIRONMENT, arguments)
    except Exception as error:  # noqa: BLE001 - a mistake of epbuild's own is no reason to show a user its insides unasked
        if "can't start new thread" in str(error):  # how Python tells that there is no memory for one
            _say(f"error: there is not enough memory to go on: {error}. Check the limits of this process (`ulimit -a`).")
            return _failed(_ENVIRONMENT, arguments)
        _say(f"internal error: {type(error).__name__}: {error}. Please report it, with what `epbuild --debug` shows.")
        return _failed(1, arguments)
    return outcome if isinstance(outcome, int) else 0


def _interrupt_once(number: int, frame: object) -> None:
    """What Ctrl-C does, the first time: ending what runs takes a moment, and must not be interrupted itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def abandon_output() -> int:
    """Say nothing more, also not when Python flushes at exit, as whoever read our output has gone; returns the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _failed(code: int, arguments: Sequence[str]) -> int:
    if "--debug" in arguments:
        traceback.print_exc()
    return code


def _say(text: str) -> None:
    sys.stderr.write(f"epbuild: {text}\n")
