"""Reference page of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from typer.main import get_command

from epbuild.cli import app
from tools.reference.markdown import build_anchor, format_code, format_paragraph, format_table

_INTRODUCTION = """\
Every command has the option `-h`, `--help`, which prints the same text as this page.

Errors are printed to standard error. Each error ends with a code that [Error codes](errors.md) explains.
With `--json`, standard output contains only JSON, which [JSON documents and events](json.md) describes.

The tables list the exit codes of each command. In addition, each command exits with 1 after an internal error (a bug
in epbuild), or if the program that reads its output closes the pipe.
"""
_SUFFIX = re.compile(r"\s\[(default|env): ([^\]]*)\]")


class _Help(NamedTuple):
    """Help of a parameter, and the parts that epbuild appends to it."""

    text: str
    default: str
    variable: str

    @classmethod
    def of(cls, parameter: Any) -> _Help:
        text = parameter.help or ""
        found = dict(_SUFFIX.findall(text))
        minimum = getattr(parameter.type, "min", None)
        bound = f" At least {minimum:g}." if minimum is not None else ""
        return cls(f"{_SUFFIX.sub('', text)}{bound}", found.get("default", ""), found.get("env", ""))


def build_commands_page() -> Iterator[str]:
    """Yield the parts of the page, after its title."""
    root: Any = get_command(app._application)
    yield from map(format_paragraph, _INTRODUCTION.split("\n\n"))
    names = [*list_commands(root)]
    yield format_table(
        ("command", "purpose"),
        [(f"[`{' '.join(name)}`](#{build_anchor(' '.join(('epbuild', *name)))})", text) for name, text in names],
    )
    yield "## epbuild"
    yield format_paragraph(root.help or "")
    yield "```text\nepbuild [OPTIONS] COMMAND [ARGS]...\n```"
    yield from _build_option_tables(root.params)
    for name, _ in names:
        yield from _build_command(root, name)


def list_commands(root: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the words of each command and subcommand, with its short help."""
    for name, text in app._COMMANDS.items():
        yield (name,), text
        for child, command in getattr(root.commands.get(name), "commands", {}).items():
            yield (name, child), command.short_help


def _build_command(root: Any, name: tuple[str, ...]) -> Iterator[str]:
    command, context = root, root.make_context("epbuild", [], resilient_parsing=True)
    for part in name:
        command = command.commands.get(part)
        context = type(context)(command, info_name=part, parent=context)
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    yield f"## epbuild {' '.join(name)}"
    yield from (format_paragraph(text) for text in command.help.split("\n\n"))
    yield f"```text\n{usage}\n```"
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    if arguments:
        found = [(parameter, _Help.of(parameter)) for parameter in arguments]
        yield format_table(
            ("argument", "meaning", "default"),
            [(format_code(parameter.metavar), help_.text, _format_default(parameter, help_)) for parameter, help_ in found],
        )
    yield from _build_option_tables(command.params)
    exits = getattr(command.callback, "exits", None) or {}
    yield format_table(("exit code", "meaning"), [(format_code(str(number)), meaning) for number, meaning in exits.items()])


def _build_option_tables(parameters: Iterable[Any]) -> Iterator[str]:
    """Yield a table for each panel of options, the general options first."""
    panels: dict[str, list[Any]] = {"": []}
    for parameter in parameters:
        if parameter.param_type_name == "option" and not parameter.hidden:
            panels.setdefault(parameter.rich_help_panel or "", []).append(parameter)
    for title, options in panels.items():
        if not options:
            continue
        rows = [
            (_format_spelling(option), found.text, _format_default(option, found), found.variable)
            for option in options
            for found in [_Help.of(option)]
        ]
        head = ("option" if not title else f"option: {title[:1].lower()}{title[1:]}", "meaning", "default", "variable")
        has_variables = any(row[3] for row in rows)
        yield format_table(
            head if has_variables else head[:3],
            [(*row[:3], format_code(row[3]) if row[3] else "") if has_variables else row[:3] for row in rows],
        )


def _format_spelling(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    names = sorted(option.opts, key=len)
    return ", ".join(format_code(f"{name}{value}" if name == names[-1] else name) for name in [*names, *option.secondary_opts])


def _format_default(parameter: Any, found: _Help) -> str:
    if parameter.required:
        return "required"
    return found.default
