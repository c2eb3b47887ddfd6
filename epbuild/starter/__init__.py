"""The first recipe of a project: from what somebody wants to build to a commented text that validates and builds."""

from epbuild.starter.kinds import KINDS, Kind, without_recipe
from epbuild.starter.recipe import Wishes, model_names, why_not, write_recipe
from epbuild.starter.sizing import BadSizes, Check, Sized, Sizes, Sizing, read_sizes
from epbuild.starter.sources import FoundModel, LeftOut, find_models

__all__ = [
    "KINDS",
    "BadSizes",
    "Check",
    "FoundModel",
    "Kind",
    "LeftOut",
    "Sized",
    "Sizes",
    "Sizing",
    "Wishes",
    "find_models",
    "model_names",
    "read_sizes",
    "why_not",
    "without_recipe",
    "write_recipe",
]
