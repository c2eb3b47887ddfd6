"""The recipe: YAML text in, a `Recipe` out, and every mistake told with its file, line and column."""

from epbuild.recipe.load import BrokenRecipe, load
from epbuild.recipe.model import (
    CompileSettings,
    DeviceChoice,
    EpChoice,
    Expectation,
    Group,
    GroupMember,
    ModelSource,
    Output,
    Recipe,
    Reference,
    Scalar,
    Setting,
    Target,
    Toolchain,
)
from epbuild.recipe.template import OUTPUT_NAMES, TemplateError, substitute

__all__ = [
    "OUTPUT_NAMES",
    "BrokenRecipe",
    "CompileSettings",
    "DeviceChoice",
    "EpChoice",
    "Expectation",
    "Group",
    "GroupMember",
    "ModelSource",
    "Output",
    "Recipe",
    "Reference",
    "Scalar",
    "Setting",
    "Target",
    "TemplateError",
    "Toolchain",
    "load",
    "substitute",
]
