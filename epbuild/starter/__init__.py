"""The first recipe of a project: from what somebody wants to build to a commented text that validates and builds."""

from epbuild.starter.kinds import KINDS, Kind
from epbuild.starter.recipe import Wishes, write_recipe

__all__ = ["KINDS", "Kind", "Wishes", "write_recipe"]
