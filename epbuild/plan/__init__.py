"""`Recipe` → `Plan`: the ordered graph of steps, session groups, emissions and action keys. Pure: no writes, no processes."""

from epbuild.plan.custom_ops import CustomOps
from epbuild.plan.key import Change, action_key, changes, differences, key_document
from epbuild.plan.outputs import BASE, BOM, GENAI_CONFIG, MANIFEST, PROVENANCE
from epbuild.plan.planner import make_plan, problems_of_the_rest
from epbuild.plan.possible import obstacle, obstacles
from epbuild.plan.preparation_options import package_problems, preparation_options, preparation_problems
from epbuild.plan.preparing import PYTHON, Preparation, preparation_document
from epbuild.plan.shapes import input_problems, shape_problems, shape_warnings, sized
from epbuild.plan.source_problems import source_problems
from epbuild.plan.sources import Locate, find_source
from epbuild.plan.steps import (
    STATEMENT,
    Action,
    Emission,
    Genai,
    Member,
    Merging,
    ModelFiles,
    OptionFile,
    Part,
    Plan,
    PlannedEp,
    PlannedTarget,
    SessionGroup,
    Step,
    ToolchainNeeds,
)
from epbuild.plan.verification import CheckedMember, Compiled, Verification, verification_document, verification_id

__all__ = [
    "BASE",
    "BOM",
    "GENAI_CONFIG",
    "MANIFEST",
    "PROVENANCE",
    "PYTHON",
    "STATEMENT",
    "Action",
    "Change",
    "CheckedMember",
    "Compiled",
    "CustomOps",
    "Emission",
    "Genai",
    "Locate",
    "Member",
    "Merging",
    "ModelFiles",
    "OptionFile",
    "Part",
    "Plan",
    "PlannedEp",
    "PlannedTarget",
    "Preparation",
    "SessionGroup",
    "Step",
    "ToolchainNeeds",
    "Verification",
    "action_key",
    "changes",
    "differences",
    "find_source",
    "input_problems",
    "key_document",
    "make_plan",
    "obstacle",
    "obstacles",
    "package_problems",
    "preparation_document",
    "preparation_options",
    "preparation_problems",
    "problems_of_the_rest",
    "shape_problems",
    "shape_warnings",
    "sized",
    "source_problems",
    "verification_document",
    "verification_id",
]
