"""Limits on task metrics."""

from __future__ import annotations

from typing import Any

import pytest

from epbuild.core.digest import Blob
from epbuild.core.errors import Position
from epbuild.plan.result import Measurements, TaskMetric, VerificationResult
from epbuild.plan.verification import CheckedMember
from epbuild.recipe.model import MetricChoice, VerifyChoice
from epbuild.verify.live.judging import judge_metrics

HERE = Position("epbuild.yaml", 1, 1)


@pytest.mark.parametrize(
    ("limits", "missed"),
    [
        ({"min": {"accuracy": 0.8}, "max": {"accuracy": 0.8}}, ()),
        ({"min": {"accuracy": 0.8000001}}, ("min allows 0.8000001",)),
        ({"max": {"accuracy": 0.7999999}}, ("max allows 0.7999999",)),
        # 0.9 - 0.1 is 0.8, although it is less as a binary fraction.
        ({"max_drop": {"accuracy": 0.1}}, ()),
        ({"max_drop": {"accuracy": 0.0999999}}, ("max_drop allows 0.0999999 below the source",)),
        ({"max_rise": {"accuracy": 0.0}}, ()),
        ({"max_rise": {"loss": 0.1}, "max_drop": {"loss": 0.0}}, ()),
    ],
)
def test_limits_are_exact_and_relative_to_the_source(limits: dict[str, Any], missed: tuple[str, ...]) -> None:
    metric = MetricChoice(HERE, (), **limits)
    checked = CheckedMember("model", "compile:main/npu/model", VerifyChoice(HERE, metric=metric))
    rows = (
        TaskMetric("model", "accuracy", 0.9, 0.8),
        TaskMetric("model", "loss", 0.2, 0.3),
        TaskMetric("other", "accuracy", 1, 0),
    )
    result = VerificationResult({}, Blob("0" * 64, 0), Measurements(1.0, {}, None), (), (), rows)
    first, second = judge_metrics(checked, result)
    assert first.missed == missed
    assert second.missed == ()
    assert first.text == "accuracy is 0.8, and 0.9 for the source"
