"""Action types: one for each action whose result the store keeps, and surveys that do not load the compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

from epbuild.actions.types import ACTION_TYPES
from epbuild.plan.measuring import ModelMeasurement
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import CompileResult, MeasurementResult, PreparationResult, VerificationResult
from epbuild.plan.steps import CopiedModel, Emission, SessionGroup
from epbuild.plan.verification import Verification


def test_each_stored_action_has_one_type_with_its_own_result() -> None:
    results = {
        SessionGroup: CompileResult,
        CopiedModel: CompileResult,
        Preparation: PreparationResult,
        Verification: VerificationResult,
        ModelMeasurement: MeasurementResult,
    }
    assert {action: kind.result for action, kind in ACTION_TYPES.items()} == results
    assert len({(kind.doing_again, kind.done) for kind in ACTION_TYPES.values()}) == len(ACTION_TYPES)
    assert Emission not in ACTION_TYPES


def test_each_type_is_declared_for_its_action() -> None:
    for action, kind in ACTION_TYPES.items():
        [declared] = vars(type(kind))["__orig_bases__"]
        assert get_args(declared)[0] == action


def test_survey_imports_neither_the_compiler_nor_the_publisher() -> None:
    code = "import sys, epbuild.commands.plan; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, encoding="utf-8").stdout.split()
    assert "epbuild.survey.status" in loaded
    assert [name for name in loaded if name.startswith(("epbuild.compile", "epbuild.publish."))] == []
