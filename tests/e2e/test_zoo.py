"""Models that nobody here wrote, as they come in packages: with their sizes given and nothing else, they are whole on the NPU."""

from __future__ import annotations

import shutil

import pytest
from conftest import RECIPES, Project, compiled

SOC = "SM8650"
MODELS = ["ocr-cls", "basic-pitch", "orientation"]
"""The first has open sizes that no name tells apart; of the others, some nodes stay outside where no graph optimisation folds constants."""


@pytest.fixture
def zoo(project: Project) -> Project:
    """The checked-in recipe, whose models are fetched."""
    shutil.copy(RECIPES / "zoo.yaml", project.recipe)
    return project


def test_real_models_of_packages_are_whole_with_their_sizes_alone(zoo: Project) -> None:
    events = zoo.build("epbuild.yaml", *(f"compile:whole/snapdragon-{SOC}/{model}" for model in MODELS))
    assert compiled(events) == {f"compile:whole/snapdragon-{SOC}/{model}" for model in MODELS}
