"""The command line of a plain `run`, read without any import.

It is a second reader of what `epbuild.cli.run` takes: a test holds both together, for every option and any command line.
"""

from __future__ import annotations

from epbuild.core.defaults import DEFAULT_RECIPE

TYPE_CHECKING = False  # as type checkers read it, without the import that would take longer than what is done here
if TYPE_CHECKING:
    from collections.abc import Sequence

_SEPARATORS = "/\\"
_GLOB = frozenset("*?[")
_PLAIN = frozenset({"-k", "--keep-going", "--check", "--locked"})
"""The flags of a `run` that may be answered by a line."""
_LOOKING = {"run": _PLAIN | {"-n", "--dry-run", "--json"}, "plan": frozenset({"--json"})}
"""The flags of commands with which they look at a recipe again before anything else."""


def nothing_to_do(steps: int) -> str:
    """That all of so many steps are up to date."""
    return "Nothing to do: " + ("1 step is" if steps == 1 else f"{steps} steps are") + " up to date"


def recipe_and_steps(names: Sequence[str], recipe: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The recipe, and the ids or globs of steps, of a command that is given `names`; `recipe` is that of its `--recipe`.

    The first name is a recipe unless it can only be a step: it has a `:` before any separator, as in `emit:decoder/npu/directory`, or it
    is a glob, or a file of steps (`@steps.txt`). One letter before a `:` is a drive (`C:`).
    """
    if recipe is not None:
        return recipe, tuple(names)
    if not names or _is_step(names[0]):
        return DEFAULT_RECIPE, tuple(names)
    return names[0], tuple(names[1:])


def _is_step(name: str) -> bool:
    if name.startswith("@") or not _GLOB.isdisjoint(name):
        return True
    colon = name.find(":")
    before = name[: max(colon, 0)]
    is_drive = len(before) == 1 and before.isalpha()
    return colon >= 0 and not is_drive and not any(separator in before for separator in _SEPARATORS)


def read_run(arguments: Sequence[str]) -> tuple[str, bool, bool, tuple[tuple[str, ...], tuple[str, ...]]] | None:
    """The recipe, whether to check only, whether `--locked`, and what was asked, of a `run` whose arguments are all plain; else None."""
    read = _parsed(arguments[1:], _PLAIN) if arguments and arguments[0] == "run" else None
    if read is None:
        return None
    recipe, flags, asked = read
    return recipe, "--check" in flags, "--locked" in flags, asked


def read_look(arguments: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The recipe and the settings of a command that looks again at all of a recipe before anything else; None where that is not certain."""
    flags = _LOOKING.get(arguments[0]) if arguments else None
    read = _parsed(arguments[1:], flags) if flags is not None else None
    return None if read is None else (read[0], read[2][1])


def _parsed(
    arguments: Sequence[str], flags: frozenset[str]
) -> tuple[str, set[str], tuple[tuple[str, ...], tuple[str, ...]]] | None:
    """The recipe, those of these `flags` that are there, and the steps and settings that were asked for; None where there is more."""
    names: list[str] = []
    settings: list[str] = []
    given: set[str] = set()
    recipe: str | None = None
    following = iter(arguments)
    for argument in following:
        name, equals, value = argument.partition("=")
        if argument.startswith("@"):  # a file, which has to be read
            return None
        if not argument.startswith("-"):
            names.append(argument)
        elif argument in flags:
            given.add(argument)
        elif argument == "-r" or name == "--recipe":
            recipe = value if equals else next(following, "")
        elif name == "--set":
            settings.append(value if equals else next(following, ""))
        elif argument in ("-j", "--jobs") and flags >= _PLAIN and _counts(next(following, "")):
            pass
        else:
            return None
    if not all(names) or not all(settings) or recipe == "":
        return None
    found, steps = recipe_and_steps(names, recipe)
    return found, given, (steps, tuple(settings))


def _counts(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0
