"""Options of commands: declaring them, grouping them, and refusing combinations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec
import typer
from typer._click.exceptions import ClickException, NoSuchOption, UsageError  # typer has no public name for them
from typer.core import TyperCommand

__all__ = [
    "ClickException",
    "Excludes",
    "Needs",
    "OptionGroup",
    "UsageError",
    "amount",
    "application",
    "choice",
    "option",
    "options",
    "sentence",
]


class OptionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Options that belong together. Each field is an option; a command's parameter of such a type stands for all of them."""


class Excludes(NamedTuple):
    """Options, none of which can be given together with any of `others`."""

    options: Collection[str]
    others: Collection[str]
    message: str

    def is_broken(self, given: Collection[str]) -> bool:
        """Return whether `given`, the options of a command line, break the rule."""
        return any(name in given for name in self.options) and any(name in given for name in self.others)


class Needs(NamedTuple):
    """Options, each of which has a meaning only together with at least one of `others`."""

    options: Collection[str]
    others: Collection[str]
    message: str

    def is_broken(self, given: Collection[str]) -> bool:
        """Return whether `given`, the options of a command line, break the rule."""
        return any(name in given for name in self.options) and not any(name in given for name in self.others)


Rule = Excludes | Needs
Function = TypeVar("Function", bound=Callable[..., Any])


def application(**settings: Any) -> _Application:
    """Return the application of one command's module. Its help is plain text, and `app.execute` shows its errors."""
    return _Application(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


class _Application(typer.Typer):
    def command(self, *arguments: Any, rules: Iterable[Rule] = (), **settings: Any) -> Callable[[Function], Function]:
        register = super().command(*arguments, cls=_Command, **settings)

        def decorate(function: Function) -> Function:
            register(_with_plain_options(function, tuple(rules)))
            return function

        return decorate


class _Command(TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments for the line "Usage:". Typer encloses required ones in braces; these are removed."""
        pieces = super().collect_usage_pieces(ctx)
        return [piece[1:-1] if piece.startswith("{") else piece for piece in pieces]

    def invoke(self, ctx: Any) -> Any:
        given = set(_given_options(ctx.command.params, ctx.params))
        for rule in getattr(self.callback, "rules", ()):
            if rule.is_broken(given):
                raise UsageError(rule.message)
        return super().invoke(ctx)


def _with_plain_options(function: Callable[..., Any], rules: tuple[Rule, ...]) -> Callable[..., Any]:
    """Return `function` with a parameter for each option of its groups, as typer expects."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, type[OptionGroup]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints[name]
        if isinstance(hint, type) and issubclass(hint, OptionGroup):
            groups[name] = hint
            parameters += _parameters(hint)
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{field: values.pop(field) for field in group.__struct_fields__})
        return function(**values)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.rules = rules  # type: ignore[attr-defined]
    return command


def _parameters(group: type[OptionGroup]) -> Iterator[inspect.Parameter]:
    for field in msgspec.structs.fields(group):
        default = inspect.Parameter.empty if field.required else field.default
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)


def _given_options(parameters: Iterable[Any], values: dict[str, Any]) -> Iterator[str]:
    """Yield the options and arguments of a command line that have a value, those with a text also as "OPTION TEXT"."""
    for parameter in parameters:
        value = values.get(parameter.name)
        if value is not None and value is not False and value not in ((), []):
            for name in parameter.opts:
                yield name
                if isinstance(value, str):
                    yield f"{name} {value}"


def option(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002 - as typer has it
    """Declare an option of one value. The text of `help` mentions its default, if there is one."""
    return typer.Option(*names, help=help, show_default=False, **settings)


def options(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002
    """Declare an option that may be given several times: a list, empty by default."""
    return option(*names, help=help, default_factory=list, **settings)


def amount(name: str, read: Callable[[str], int]) -> Callable[[str], int]:
    """Return the parser of a number with a unit, which `read` reads."""

    def convert(text: str) -> int:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(f"invalid {name}: {text}. {error}") from None

    return convert


def choice(names: Collection[str]) -> dict[str, Any]:
    """Return the settings of an option or an argument that is one of `names`, in any case."""

    def convert(text: str) -> str:
        if text.lower() not in names:
            raise typer.BadParameter(f"'{text}' is not one of {', '.join(repr(name) for name in names)}.")
        return text.lower()

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return {"parser": convert, "autocompletion": complete, "metavar": f"[{'|'.join(names)}]"}


def sentence(error: ClickException) -> str:
    """Return the message of an error as a sentence. An unknown option is followed by the most similar ones."""
    if isinstance(error, NoSuchOption):
        near = " or ".join(f"'{name}'" for name in sorted(error.possibilities or ()))
        return f"No such option '{error.option_name}'." + (f" Did you mean {near}?" if near else "")
    text = error.format_message()
    return text if text.endswith((".", "?", "!")) else f"{text}."
