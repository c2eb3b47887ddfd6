"""The recipe: YAML text in, a `Recipe` out, and every mistake told with its file, line and column."""

from epbuild.recipe.load import load, validation_digest
from epbuild.recipe.model import (
    CompileSettings,
    DeviceChoice,
    Expectation,
    Group,
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
    "CompileSettings",
    "DeviceChoice",
    "Expectation",
    "Group",
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
    "validation_digest",
]
