"""Custom operators of toolchains: found, checked for ambiguous names, and part of the key."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from epbuild.plan.key import describe_differences
from epbuild.plan.steps import SessionGroup
from tests.support.plan_recipes import RECIPE, document_of, edited, plan_of, problems_of, write_models
from tests.support.recipe_texts import MARK, codes_and_places

PACKAGES = "    packages: [onnxruntime-qnn==2.7.0]\n"
SHARED = "share:decoder/phone"


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    write_models(tmp_path)
    for name in ("liba.so", "libb.so", "other/liba.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def with_ops(listed: str) -> str:
    return edited(RECIPE, (PACKAGES, f"{PACKAGES}    custom_ops: {listed}\n"))


def planned(folder: Path, text: str, action: str = SHARED) -> SessionGroup:
    return plan_of(folder, text).session_groups[action]


def changed(folder: Path, before: str, after: str) -> list[str]:
    return describe_differences(document_of(planned(folder, before)), document_of(planned(folder, after)))


def test_every_session_has_each_custom_operator_of_its_toolchain_once(workshop: Path) -> None:
    text = with_ops("[acme_ops, ./liba.so, more_ops, acme_ops, libb.so, liba.so]")
    group = planned(workshop, text)
    assert [ops.name for ops in group.custom_ops] == ["acme_ops", "liba.so", "libb.so", "more_ops"]
    assert {workshop / "liba.so", workshop / "libb.so"} <= set(group.files), "a change of them is seen, also during a compile"
    assert planned(workshop, text, "compile:vision/cpu/prefill").custom_ops == ()


def test_a_toolchain_requires_the_operator_packages_that_it_names(workshop: Path) -> None:
    needs = plan_of(workshop, with_ops("[acme_ops, liba.so]")).toolchains()
    assert {module: (where.line, where.column) for module, where in needs["qnn"].packages.items()} == {"acme_ops": (6, 18)}
    assert needs["openvino"].packages == {}


def test_a_missing_library_is_reported_once_at_its_position(workshop: Path) -> None:
    marked = with_ops(f"[liba.so, {MARK}./nosuch.so]")
    line = marked.partition(MARK)[0].count("\n") + 1
    (problem,) = problems_of(workshop, marked.replace(MARK, ""))
    assert (problem.code, problem.where.line, problem.where.column) == ("EPB252", line, 27)  # type: ignore[union-attr]
    assert "does not exist: ./nosuch.so" in problem.message


def test_a_folder_is_refused_as_a_library(workshop: Path) -> None:
    assert [problem.code for problem in problems_of(workshop, with_ops("[./other]"))] == ["EPB252"]


def test_two_libraries_with_the_same_file_name_are_refused(workshop: Path) -> None:
    (problem,) = problems_of(workshop, with_ops("[liba.so, other/liba.so]"))
    assert (problem.code, problem.where.line, problem.where.column) == ("EPB253", 6, 27)  # type: ignore[union-attr]
    assert "have the same name, 'liba.so'" in problem.message


def test_added_removed_and_changed_operators_are_named_in_the_reasons(workshop: Path) -> None:
    assert changed(workshop, RECIPE, with_ops("[acme_ops]")) == ["custom operators acme_ops added"]
    assert changed(workshop, with_ops("[acme_ops, liba.so]"), with_ops("[acme_ops]")) == ["custom operators liba.so removed"]
    old, new = (hashlib.sha256(name.encode()).hexdigest()[:8] for name in ("liba.so", "other/liba.so"))
    sentence = f"the library of custom operators liba.so changed: {old} -> {new}"
    assert changed(workshop, with_ops("[liba.so]"), with_ops("[other/liba.so]")) == [sentence]


def test_the_order_of_custom_operators_does_not_change_the_key(workshop: Path) -> None:
    assert changed(workshop, with_ops("[liba.so, acme_ops]"), with_ops("[acme_ops, ./liba.so]")) == []


def test_keys_without_custom_operators_have_no_entry_for_operators(workshop: Path) -> None:
    assert "custom_ops" not in document_of(planned(workshop, RECIPE))


def test_an_invalid_library_is_reported_along_with_other_problems(workshop: Path) -> None:
    text = edited(with_ops("[nosuch.so]"), ("soc_model: SM8750", "soc_model: SM8750\n      nosuch: 1"))
    assert sorted(code for code, *_ in codes_and_places(problems_of(workshop, text))) == ["EPB211", "EPB252"]
