"""Provision, probe and fingerprint the Python environments that hold one ONNX Runtime and its EPs, and say what to lock of them."""

from typing import TYPE_CHECKING

from epbuild.late import late
from epbuild.toolchain.environment import Environment, prepare, ready
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.toolchain.provision import LOCKED, Requirements, provision, provisioned_in

if TYPE_CHECKING:
    from epbuild.toolchain.platforms import PLATFORMS, platform_here
    from epbuild.toolchain.resolve import asked, deviations, find_python, found_installed, named_python, resolve_packages

__all__ = [
    "LOCKED",
    "PLATFORMS",
    "Environment",
    "Fingerprint",
    "Requirements",
    "asked",
    "deviations",
    "find_python",
    "found_installed",
    "named_python",
    "platform_here",
    "prepare",
    "provision",
    "provisioned_in",
    "ready",
    "resolve_packages",
]

__getattr__ = late(
    __name__,
    {
        "platforms": ("PLATFORMS", "platform_here"),
        "resolve": ("asked", "deviations", "find_python", "found_installed", "named_python", "resolve_packages"),
    },
)
