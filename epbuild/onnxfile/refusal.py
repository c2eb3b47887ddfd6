"""What a change of a compiled model's packaging raises when it is not made."""

from __future__ import annotations

from epbuild.core.errors import EpbuildError


class ChangeRefused(EpbuildError):
    """The change that was asked for cannot be made, or would give a model that its EP does not load (EPB62x); nothing was written."""

    exit_code = 2
