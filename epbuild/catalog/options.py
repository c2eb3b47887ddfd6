"""Data model of EP options and session keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

from msgspec import Struct, field

OptionType = Literal["text", "choice", "boolean", "integer", "number", "size", "name", "list", "pattern", "file", "folder"]
Effect = Literal["measured", "documented", "unknown", "none"]
"""Effect of an option on compiled files. `none` means no effect.

All other values mean that the option has or may have an effect. Each of these values states how the effect is known.
"""


class Option(Struct, frozen=True):
    """Option of an EP, or session key, with its valid values and their effect on compiled files."""

    name: str
    type: OptionType
    output: Effect
    meaning: str
    origin: str
    """Source of the information: `measured`, `doc <where>`, or `string in <library> <version>`."""
    values: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Values to suggest in messages, by the invalid value that a user might write, in lower case."""
    minimum: int | float | None = None
    maximum: int | float | None = None
    pattern: str | None = None
    example: str | None = None
    default: str | None = None
    since: str | None = None
    """First release with the option. None means that all releases have it, or that this is unknown.

    For an option of an EP, this is a release of the EP's distributions. For a session key, it is a release of ONNX Runtime.
    """
    until: str | None = None
    """Last release with the option. `1.22` includes patch releases such as 1.22.1. None means that the latest release has it."""
    runtime: bool = False
    """True if only a session that runs the model reads the option. Recipes may not set it for compiles."""
    inline: str | None = None
    """Regular expression for values of type `file` that are not paths: the content itself, or a name that the EP looks up."""
    files_pattern: str | None = None
    """Regular expression for values that contain paths. Its first group is a path."""
    case: Literal["upper", "lower"] | None = None
    compile_only: str | None = None
    """Regular expression for canonical values that must not be passed to a session that runs compiled models."""

    diagnostic: bool = False
    """True if the option makes the compile write files beside the compiled model, or names such a file."""

    @property
    def changes_output(self) -> bool:
        """True if the value may affect compiled files."""
        return self.output != "none"

    @property
    def is_keyed(self) -> bool:
        """True if the value belongs in an action key. The files that a diagnostic option requests are part of the result."""
        return self.changes_output or self.diagnostic

    def describes_runs(self, value: str) -> bool:
        """Return whether a canonical value requests files about runs of a model, such as a profile."""
        return self.diagnostic and (self.compile_only is None or not re.search(self.compile_only, value))

    def only_compiling(self, value: str) -> bool:
        """Return whether a canonical value is only for compiles.

        Such a value requests a dump, is the path of a dump, or is refused by a session that runs a model.
        """
        if self.compile_only is not None and re.search(self.compile_only, value):
            return True
        return not self.changes_output and not self.runtime

    def files(self, value: str) -> tuple[str, ...]:
        """Return the paths of the files in `value`. A compile depends on their content."""
        if self.files_pattern is not None:
            return tuple(match[1] for match in re.finditer(self.files_pattern, value))
        if self.type != "file" or not value or (self.inline is not None and re.search(self.inline, value)):
            return ()
        return (value,)

    def with_files(self, value: str, names: Sequence[str]) -> str:
        """Return `value` with its paths replaced by `names`, which are in the order of the paths from `files`."""
        if not names:
            return value
        if self.files_pattern is None:
            return names[0]
        following = iter(names)

        def renamed(match: re.Match[str]) -> str:
            start, end = match.start(1) - match.start(), match.end(1) - match.start()
            return match[0][:start] + next(following) + match[0][end:]

        return re.sub(self.files_pattern, renamed, value)

    def known_in(self, version: str) -> bool:
        """Return whether a release has this option according to the catalog. If the version cannot be parsed, return True."""
        asked, first, last = release_numbers(version), release_numbers(self.since or ""), release_numbers(self.until or "")
        if not asked:
            return True
        from_first = asked + (0,) * (len(first) - len(asked)) >= first  # 1.24 is 1.24.0
        return from_first and (not last or asked[: len(last)] <= last)

    @property
    def releases(self) -> str:
        """Releases with this option, as part of a sentence: `since 1.21`, or `since 1.21 and until 1.30`. Empty means all."""
        bounds = {"since": self.since, "until": self.until}
        return " and ".join(f"{word} {version}" for word, version in bounds.items() if version is not None)


@cache
def release_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, or an empty tuple if it cannot be parsed.

    The package `packaging` is not used, because it would slow down every plan.
    """
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
