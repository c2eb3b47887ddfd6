"""Options of commands: declaration, grouping, and invalid combinations."""

from __future__ import annotations

import copy
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

import msgspec
import typer
from msgspec import Struct
from typer._click.exceptions import ClickException, NoSuchOption, UsageError  # Typer has no public names for these classes.
from typer.core import TyperCommand

from epbuild.core.errors import Misuse, suggest_nearest

__all__ = [
    "COMMAND_LINE",
    "INTERRUPTED",
    "MACHINE",
    "ClickException",
    "Excludes",
    "Needs",
    "OptionGroup",
    "UsageError",
    "declare_option",
    "declare_options",
    "format_sentence",
    "make_amount_parser",
    "make_application",
    "make_choice",
    "with_default",
]


COMMAND_LINE = "the command line is invalid"
INTERRUPTED = "interrupted; finished work is kept"
MACHINE = "a problem with this machine: a toolchain, a device, permissions, memory or disk space"
_EXITS = {2: "the recipe or the command line is invalid", 3: MACHINE, 130: INTERRUPTED}
"""Exit codes of most commands."""
_OPTIONS = "Options"


class OptionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Related options. Each field is an option. A parameter of this type adds all of these options to a command."""

    panel: ClassVar[str | None] = None
    """Title of the options in the help, or None for general options."""


class Excludes(Struct, frozen=True):
    """Rule that `options` cannot be combined with `others`."""

    options: Collection[str]
    others: Collection[str]
    message: str

    def is_broken(self, given: Collection[str]) -> bool:
        """Return whether the options of a command line, `given`, break the rule."""
        return any(name in given for name in self.options) and any(name in given for name in self.others)


class Needs(Struct, frozen=True):
    """Rule that `options` require at least one of `others`."""

    options: Collection[str]
    others: Collection[str]
    message: str

    def is_broken(self, given: Collection[str]) -> bool:
        """Return whether the options of a command line, `given`, break the rule."""
        return any(name in given for name in self.options) and not any(name in given for name in self.others)


Rule = Excludes | Needs
Function = TypeVar("Function", bound=Callable[..., Any])


def make_application(**settings: Any) -> _Application:
    """Return the Typer application of one command. The help is plain text, and `app.execute` prints the command's errors."""
    return _Application(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


class _Application(typer.Typer):
    def command(
        self, *arguments: Any, rules: Iterable[Rule] = (), exits: Mapping[int, str] | None = None, **settings: Any
    ) -> Callable[[Function], Function]:
        """Register a command. `exits` describes the exit codes whose meaning differs from that in `_EXITS`."""
        codes = None if exits is None else dict(sorted((_EXITS | {**exits}).items()))
        register = super().command(*arguments, cls=_Command, epilog=None if codes is None else _format_epilog(codes), **settings)

        def decorate(function: Function) -> Function:
            register(_flatten_options(function, tuple(rules), codes))
            return function

        return decorate

    def callback(self, *, exits: Mapping[int, str], **settings: Any) -> Callable[[Function], Function]:  # type: ignore[override]
        """Register the command that runs if the command line has no subcommand."""
        codes = dict(sorted((_EXITS | {**exits}).items()))
        register = super().callback(epilog=_format_epilog(codes), **settings)

        def decorate(function: Function) -> Function:
            function.exits = codes  # type: ignore[attr-defined]
            return register(function)

        return decorate


def _format_epilog(codes: Mapping[int, str]) -> str:
    """Return the table of exit codes for the help."""
    lines = [
        f"{textwrap.fill(text, 76, initial_indent=f'  {code:<5}', subsequent_indent=' ' * 7, break_on_hyphens=False)}"
        for code, text in codes.items()
    ]
    return "\n".join(["\b", "Exit codes:", *lines])


class _Command(TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments for the line "Usage:", without the braces that Typer adds around required arguments."""
        pieces = super().collect_usage_pieces(ctx)
        return [piece[1:-1] if piece.startswith("{") else piece for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the general options, and the options of each panel to the help."""
        sections: dict[str, list[Any]] = {"Arguments": [], _OPTIONS: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                title = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or _OPTIONS
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def invoke(self, ctx: Any) -> Any:
        given = set(_list_given_options(ctx.command.params, ctx.params))
        for rule in getattr(self.callback, "rules", ()):
            if rule.is_broken(given):
                raise UsageError(rule.message)
        try:
            return super().invoke(ctx)
        except Misuse as error:
            if error.option is None:
                raise UsageError(str(error)) from error
            raise typer.BadParameter(str(error), param_hint=error.option) from error


def _flatten_options(
    function: Callable[..., Any], rules: tuple[Rule, ...], exits: Mapping[int, str] | None
) -> Callable[..., Any]:
    """Return `function` with a separate parameter for each option of its groups, as Typer expects."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, type[OptionGroup]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints[name]
        if isinstance(hint, type) and issubclass(hint, OptionGroup):
            groups[name] = hint
            parameters += _build_parameters(hint)
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{field: values.pop(field) for field in group.__struct_fields__})
        return function(**values)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.rules = rules  # type: ignore[attr-defined]
    command.exits = exits  # type: ignore[attr-defined]
    return command


def _build_parameters(group: type[OptionGroup]) -> Iterator[inspect.Parameter]:
    for field in msgspec.structs.fields(group):
        default = inspect.Parameter.empty if field.required else field.default
        kind, info = get_args(field.type)
        if group.panel is not None:
            info = copy.copy(info)  # Other commands use the same option without a panel.
            info.rich_help_panel = group.panel
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _list_given_options(parameters: Iterable[Any], values: dict[str, Any]) -> Iterator[str]:
    """Yield the given options and arguments of a command line. A text value is also yielded as "OPTION TEXT"."""
    for parameter in parameters:
        value = values.get(parameter.name)
        if value is not None and value is not False and value not in ((), []):
            for name in parameter.opts:
                yield name
                if isinstance(value, str):
                    yield f"{name} {value}"


def declare_option(
    *names: str,
    help: str,  # noqa: A002 - Typer's name
    default: str | None = None,
    variable: str | None = None,
    **settings: Any,
) -> Any:
    """Declare an option with one value. `default` describes the default, and `variable` names the environment variable."""
    text = with_default(help, default) if variable is None else f"{with_default(help, default)} [env: {variable}]"
    return typer.Option(*names, help=text, show_default=False, **settings)


def with_default(text: str, default: str | None) -> str:
    """Return the help of a parameter, with its default."""
    return text if default is None else f"{text} [default: {default}]"


def declare_options(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002
    """Declare an option that can be given several times. Its value is a list, empty by default."""
    return declare_option(*names, help=help, default_factory=list, **settings)


def make_amount_parser(name: str, read: Callable[[str], int]) -> Callable[[str], int]:
    """Return a parser for Typer that calls `read`. Its errors say what is invalid: `name`, such as `size`."""

    def convert(text: str) -> int:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(f"invalid {name} '{text}'. {error}") from None

    return convert


def make_choice(names: Collection[str]) -> dict[str, Any]:
    """Return Typer settings for a parameter whose value is one of `names`, in upper or lower case."""

    def convert(text: str) -> str:
        if text.lower() not in names:
            near = suggest_nearest(text.lower(), names)
            hint = f" {near}" if near else ""
            raise typer.BadParameter(f"expected one of {', '.join(repr(name) for name in names)}, found '{text}'.{hint}")
        return text.lower()

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return {"parser": convert, "autocompletion": complete, "metavar": f"[{'|'.join(names)}]"}


def format_sentence(error: ClickException) -> str:
    """Return the message of an error as a sentence. For an unknown option, add the most similar options."""
    if isinstance(error, NoSuchOption):
        near = " or ".join(f"'{name}'" for name in sorted(error.possibilities or ()))
        return f"No such option '{error.option_name}'." + (f" Did you mean {near}?" if near else "")
    text = error.format_message()
    return text if text.endswith((".", "?", "!")) else f"{text}."
