"""Parser of pip requirements, limited to the parts that epbuild uses.

    onnxruntime==1.31.1       names onnxruntime, pins 1.31.1
    onnxruntime[extra]~=1.31  names onnxruntime, pins nothing

The installer interprets all other syntax (markers, ranges, addresses). The package `packaging` can parse every requirement, but its
import would delay every plan by 20 ms. `packaging.version`, whose import takes 3 ms, is imported only to compare versions with
different spellings.
"""

from __future__ import annotations

import re

from msgspec import Struct

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
# A version as in indexes and installed metadata: 1.31.1, 2.0rc1, 1.24.0.post1, 1.25.0.dev20260801001, 1.22+cu12.
_VERSION = (
    r"(?:[0-9]+!)?[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc)[0-9]+)?(?:\.post[0-9]+)?(?:\.dev[0-9]+)?(?:\+[a-z0-9]+(?:\.[a-z0-9]+)*)?"
)
_WEB = re.compile(r"(?:git\+)?https://")
_REQUIREMENT = re.compile(rf"\s*({_NAME})\s*(\[[^\]]*\])?\s*(?:==\s*({_VERSION}))?\s*")

# A path or an address can start like a name, as in wheels/x.whl. The character after the name distinguishes them.
_NAMED = re.compile(rf"\s*({_NAME})\s*(?:$|[\[(<>=!~;@,])")


class Requirement(Struct, frozen=True):
    """Pip requirement."""

    text: str
    distribution: str
    """Normalized name (PEP 503). Empty if the requirement does not start with a name."""
    version: str | None
    """Version that is pinned with `==`, or None."""
    is_plain: bool
    """True if the requirement has only a distribution and an optional version, so that epbuild can check environments against it."""

    def is_met_by(self, version: str | None) -> bool:
        """Return whether an environment meets a plain requirement.

        `version` is the installed version of the distribution, or None if it is not installed.
        """
        if version is None or self.version is None:
            return version is not None
        return is_same_version(version if "+" in self.version else version.partition("+")[0], self.version)


def read_requirement(text: str) -> Requirement:
    """Parse a pip requirement. Any text is accepted."""
    whole = _REQUIREMENT.fullmatch(text)
    name = whole or _NAMED.match(text)
    distribution = normalize_name(name[1]) if name else ""
    return Requirement(
        text=text, distribution=distribution, version=whole[3] if whole else None, is_plain=whole is not None and whole[2] is None
    )


def is_requirement(text: str) -> bool:
    """Return whether a text is a pip requirement that starts with a distribution's name.

    The installer could interpret other texts as an option, a path, a file or a second line.
    """
    if _REQUIREMENT.fullmatch(text):
        return text.isprintable()
    from packaging.requirements import InvalidRequirement
    from packaging.requirements import Requirement as FullRequirement

    try:
        url = FullRequirement(text).url
    except InvalidRequirement:
        return False
    return text.isprintable() and (url is None or _WEB.match(url) is not None)


def normalize_name(name: str) -> str:
    """Normalize the name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_same_version(one: str, other: str) -> bool:
    """Return whether two texts are the same version (PEP 440)."""
    if one == other:
        return True
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return False
