"""Errors of archives and image layouts that are not unpacked."""

from __future__ import annotations

from pathlib import Path

from epbuild.core.errors import NothingToVerify, Problem, VerifyError, printable

_LONGEST_NAME = 120


class UnsoundArchive(VerifyError):
    """An archive or an image layout is damaged (EPB619), or has a member that could do harm (EPB631)."""


class CannotUnpack(VerifyError):
    """This machine has no room for what is in an archive, or cannot hold it (EPB638)."""

    exit_code = 3


def damaged(title: str, what: str) -> UnsoundArchive:
    """`title` is the archive or the image layout as it was asked for, `what` is what is wrong with which part of it."""
    return UnsoundArchive(Problem("EPB619", what, Path(title), "Get it again."))


def harmful(title: str, member: str, why: str) -> UnsoundArchive:
    """A member that is not unpacked, whatever is in it."""
    return UnsoundArchive(Problem("EPB631", f"the member {quoted(member)} {why}", Path(title), "Nothing of it is used."))


def cannot_unpack(title: str, why: str) -> CannotUnpack:
    """What this machine lacks."""
    hint = "It is unpacked where temporary files go: name a folder with more room in TMPDIR (on Windows: TEMP)."
    return CannotUnpack(Problem("EPB638", f"it cannot be unpacked: {why}", Path(title), hint))


def nothing(title: str, why: str) -> NothingToVerify:
    """It is nothing that can be unpacked: a mistake on the command line."""
    return NothingToVerify(Problem("EPB600", f"{title} {why}"))


def quoted(member: str) -> str:
    """A member's name as a message has it: what no terminal obeys, and not longer than a line or two."""
    text = member if len(member) <= _LONGEST_NAME else f"{member[:_LONGEST_NAME]}…"
    return f"'{printable(text)}'"
