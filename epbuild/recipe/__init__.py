"""The recipe: YAML text in, a `Recipe` out, and every mistake told with its file, line and column."""

from epbuild.recipe.address import Address, BadAddress, HubAddress, ObjectAddress, WebAddress, is_immutable, parse_address
from epbuild.recipe.load import BrokenRecipe, load
from epbuild.recipe.model import (
    CompileSettings,
    DeviceChoice,
    EpChoice,
    Expectation,
    Group,
    GroupMember,
    Merge,
    ModelSource,
    Output,
    Recipe,
    Reference,
    Scalar,
    Setting,
    Target,
    Toolchain,
)
from epbuild.recipe.requirement import Requirement, read_requirement
from epbuild.recipe.template import OUTPUT_NAMES, TemplateError, substitute

__all__ = [
    "OUTPUT_NAMES",
    "Address",
    "BadAddress",
    "BrokenRecipe",
    "CompileSettings",
    "DeviceChoice",
    "EpChoice",
    "Expectation",
    "Group",
    "GroupMember",
    "HubAddress",
    "Merge",
    "ModelSource",
    "ObjectAddress",
    "Output",
    "Recipe",
    "Reference",
    "Requirement",
    "Scalar",
    "Setting",
    "Target",
    "TemplateError",
    "Toolchain",
    "WebAddress",
    "is_immutable",
    "load",
    "parse_address",
    "read_requirement",
    "substitute",
]
