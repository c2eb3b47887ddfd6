"""Locks of format 1, from before they were TOML: a line of words for each fact."""

from __future__ import annotations

from urllib.parse import unquote

from epbuild.toolchain.toml import toml_line


def renewed(text: str) -> str:
    """A lock of format 1 in format 2, each fact in its line; any other text as it is.

    Each file of a release had a line: the first of these gets all of them, and the others are left empty.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if "epbuild-lock 1" not in lines:
        return text
    releases: dict[tuple[str, ...], tuple[int, list[str]]] = {}
    for number, line in enumerate(lines):
        match _fact(line.split(" ")):
            case key, [*version, file]:
                first, files = releases.setdefault((*key, *version), (number, []))
                files.append(file)
                lines[number] = ""
                lines[first] = toml_line(key, [*version, *files])
            case key, value:
                lines[number] = toml_line(key, value)
    return "\n".join(lines)


def _fact(words: list[str]) -> tuple[tuple[str, ...], str | int | list[str]] | None:
    match words:
        case ["epbuild-lock", "1"]:
            return ("epbuild-lock",), 2
        case ["recipe", name]:
            return ("recipe",), name
        case ["catalog", subject, *revision]:
            return ("catalog", subject), " ".join(revision)
        case ["model", name, digest]:
            return ("model", name, "graph"), digest
        case ["model", name, digest, *location]:
            return ("model", name, "data", unquote(" ".join(location))), digest
        case ["toolchain", name, "requires", *requirement]:
            return ("toolchain", name, "requires", " ".join(requirement)), True
        case ["toolchain", name, platform, python]:
            return ("toolchain", name, platform, "Python"), python.strip("()")
        case ["toolchain", name, platform, release, file]:
            package, _, version = release.partition("==")
            return ("toolchain", name, platform, package), [version, file]
        case ["wheel", release, file]:
            package, _, version = release.partition("==")
            return ("wheel", package, version), [file]
    return None
