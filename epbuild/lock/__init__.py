"""The lock beside a recipe, as text and as values: which packages, models and catalog a build is made with, exactly."""

from epbuild.lock.compare import LockChange, changes
from epbuild.lock.facts import Lock, LockedEnvironment, LockedModel, LockedToolchain, Package, plain_name
from epbuild.lock.text import decoded, read_lock, render, salvage

__all__ = [
    "Lock",
    "LockChange",
    "LockedEnvironment",
    "LockedModel",
    "LockedToolchain",
    "Package",
    "changes",
    "decoded",
    "plain_name",
    "read_lock",
    "render",
    "salvage",
]
