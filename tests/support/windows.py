"""Reasons for which a test is skipped on Windows. `tools/wine` counts tests by the words that these reasons begin with."""

from __future__ import annotations

import ctypes
import sys

import pytest

IS_WINE = sys.platform == "win32" and hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")


def wine_lacks(feature: str) -> pytest.MarkDecorator:
    """Skip a test under wine, which lacks a feature of Windows."""
    return pytest.mark.skipif(IS_WINE, reason=f"wine lacks {feature}")


def not_yet(reason: str) -> pytest.MarkDecorator:
    """Skip a test that should pass on Windows and does not."""
    return pytest.mark.skipif(sys.platform == "win32", reason=f"not yet: {reason}")
