"""Builds with a lock: `--locked` refuses every deviation, and other builds report it."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.commands.plan import survey
from epbuild.commands.run import run
from epbuild.core.errors import EpbuildError, PlanError, Problem, ToolchainError
from epbuild.engine.events import EventList, NoProgress, Warned
from epbuild.recipe.load import load
from epbuild.recipe.model import ToolchainSpec
from epbuild.session.lock import get_lock_path
from epbuild.session.lock_fit import collect_catalog_facts
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.lock import Lock, LockedEnvironment, LockedModel, LockedToolchain, Package
from epbuild.toolchain.lock_file import render
from tests.support.fake_builds import EMIT_DECODER, Workshop, source_model
from tests.support.fake_fetcher import FakeFetcher

HERE = "linux-x86_64"
ADDRESS = "https://models.example/decode.onnx"
CONTENT = source_model(2.0)
PIN = hashlib.sha256(CONTENT).hexdigest()
REMOTE = ("decode: decode.onnx", f"decode: {{path: '{ADDRESS}', sha256: {PIN}}}")
A, B = "a" * 64, "b" * 64
ENVIRONMENT = LockedEnvironment(
    "cpython-3.11", (Package("onnxruntime", "1.31.1", (A,)), Package("onnxruntime-qnn", "2.7.0", (B,)))
)


class LockedWorkshop(Workshop):
    """Workshop with a matching lock and a remote model 'decode'. It records the lock of each provisioned toolchain."""

    def __init__(self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, cache, monkeypatch)
        self.fetcher = self.network = FakeFetcher(folder.parent, {"fetched.onnx": CONTENT})
        self.made_with: list[LockedEnvironment | None] = []
        monkeypatch.setattr(sysconfig, "get_platform", lambda: HERE)
        self.write_recipe(REMOTE)
        recipe = load(folder / "epbuild.yaml")
        self.fitting = Lock(
            recipe="small",
            toolchains={"qnn": LockedToolchain(("onnxruntime-qnn==2.7.0",), {HERE: ENVIRONMENT})},
            models={"decode": LockedModel(PIN)},
            catalog=collect_catalog_facts(recipe),
        )
        self.write_lock(self.fitting)

    def write_lock(self, lock: Lock) -> None:
        (self.folder / "epbuild.lock").write_text(render(lock), encoding="utf-8")

    def refusal(self, *selection: str) -> EpbuildError:
        """Return the error of a locked build. Fail if a locked check has another error."""
        self.compiled.clear()
        request = replace(self.request, selection=selection, locked=True)
        with pytest.raises(EpbuildError) as caught:
            run(request, NoProgress(), fetcher=self.fetcher)
        with pytest.raises(EpbuildError) as seen:
            survey(request)
        assert seen.value.problems == caught.value.problems
        assert self.compiled == []
        return caught.value

    @property
    def warnings(self) -> list[Problem]:
        return [event.problem for event in self.events if isinstance(event, Warned)]

    def keys(self, *, locked: bool) -> dict[str, str | None]:
        return {status.step.id: status.key for status in survey(replace(self.request, locked=locked)).steps()}

    def prepare(self, toolchain: ToolchainSpec, locked: LockedEnvironment | None) -> Environment:
        self.made_with.append(locked)
        return super().prepare(toolchain, locked)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LockedWorkshop:
    return LockedWorkshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def with_environment(lock: Lock, **changes: Any) -> Lock:
    qnn = lock.toolchains["qnn"]
    return replace(lock, toolchains={"qnn": replace(qnn, platforms={HERE: replace(ENVIRONMENT, **changes)})})


# -- Matching locks ----------------------------------------------------------------------------------------------------


def test_the_lock_is_beside_its_recipe_with_the_recipes_name(tmp_path: Path) -> None:
    assert get_lock_path(tmp_path / "epbuild.yaml") == tmp_path / "epbuild.lock"
    assert get_lock_path(tmp_path / "zoo.v2.yaml") == tmp_path / "zoo.v2.lock"


def test_a_build_uses_the_lock_with_and_without_locked(workshop: LockedWorkshop) -> None:
    assert workshop.build().exit_code == 0
    assert workshop.warnings == []
    run(replace(workshop.request, locked=True), workshop.events, fetcher=workshop.fetcher)
    assert workshop.made_with == [ENVIRONMENT, ENVIRONMENT]
    assert workshop.warnings == []


def test_a_build_has_the_same_keys_with_and_without_locked(workshop: LockedWorkshop) -> None:
    workshop.build()
    assert workshop.keys(locked=True) == workshop.keys(locked=False)
    assert set(workshop.states().values()) == {"current"}


def test_without_a_lock_no_build_is_checked_against_a_lock(workshop: LockedWorkshop) -> None:
    (workshop.folder / "epbuild.lock").unlink()
    assert workshop.build().exit_code == 0
    assert (workshop.made_with, workshop.warnings) == ([None], [])


# -- Deviations found before the build ---------------------------------------------------------------------------------


def test_without_a_lock_a_locked_build_is_refused(workshop: LockedWorkshop) -> None:
    (workshop.folder / "epbuild.lock").unlink()
    error = workshop.refusal()
    (problem,) = error.problems
    assert (problem.code, error.exit_code) == ("EPB241", 2)
    assert problem.text == (
        "--locked needs a lock, but epbuild.lock does not exist beside the recipe. Create it with `epbuild lock`."
    )


TOOLCHAIN_MISFITS: list[tuple[Callable[[Lock], Lock], str]] = [
    (
        lambda lock: replace(lock, toolchains={"qnn": replace(lock.toolchains["qnn"], requires=("onnxruntime-qnn==2.6.0",))}),
        "the toolchain 'qnn' requires onnxruntime-qnn==2.7.0, but epbuild.lock was created for onnxruntime-qnn==2.6.0",
    ),
    (
        lambda lock: replace(lock, toolchains={"qnn": replace(lock.toolchains["qnn"], requires=())}),
        "the toolchain 'qnn' requires onnxruntime-qnn==2.7.0, but epbuild.lock was created without it",
    ),
    (
        lambda lock: replace(
            lock, toolchains={"qnn": replace(lock.toolchains["qnn"], requires=("numpy", "onnxruntime-qnn==2.7.0"))}
        ),
        "epbuild.lock was created for numpy, which the toolchain 'qnn' no longer requires",
    ),
    (
        lambda lock: with_environment(lock, packages=(ENVIRONMENT.packages[0], Package("onnxruntime-qnn", "2.8.0", (B,)))),
        "the toolchain 'qnn' requires onnxruntime-qnn==2.7.0, but epbuild.lock has 2.8.0 on linux-x86_64",
    ),
    (
        lambda lock: with_environment(lock, packages=(ENVIRONMENT.packages[0],)),
        "the toolchain 'qnn' requires onnxruntime-qnn==2.7.0, but epbuild.lock has no such package on linux-x86_64",
    ),
    (
        lambda lock: with_environment(lock, packages=tuple(replace(package, files=()) for package in ENVIRONMENT.packages)),
        "epbuild creates the toolchain 'qnn', but epbuild.lock records an existing environment",
    ),
    (lambda lock: replace(lock, toolchains={}), "the toolchain 'qnn' is not in epbuild.lock"),
]


@pytest.mark.parametrize(("change", "message"), TOOLCHAIN_MISFITS)
def test_a_toolchain_that_differs_from_the_lock_is_refused_with_locked(
    workshop: LockedWorkshop, change: Callable[[Lock], Lock], message: str
) -> None:
    workshop.write_lock(change(workshop.fitting))
    error = workshop.refusal()
    assert [(problem.code, problem.message) for problem in error.problems] == [("EPB244", message)]
    assert (error.exit_code, error.problems[0].hint) == (2, "Update the lock with `epbuild lock`.")
    assert workshop.network.asked == [], "a model was fetched for a build that is refused"
    assert workshop.build().exit_code == 0
    [warning] = workshop.warnings
    assert (warning.code, warning.message) == ("EPB244", message)
    assert warning.hint == "The toolchain is provisioned without the lock. Run `epbuild lock` to update the lock."
    assert workshop.made_with == [None]


OTHER_MISFITS: list[tuple[Callable[[Lock], Lock], str, str]] = [
    (
        lambda lock: replace(lock, toolchains={**lock.toolchains, "old": LockedToolchain(("numpy",), {})}),
        "EPB244",
        "epbuild.lock contains the toolchain 'old', which is not in the recipe",
    ),
    (
        lambda lock: replace(lock, catalog={**lock.catalog, "session-keys": "1"}),
        "EPB246",
        "the catalog entry of session-keys has changed since epbuild.lock was created: revision 1 was replaced by 2",
    ),
    (
        lambda lock: replace(lock, catalog={**lock.catalog, "QNNExecutionProvider/onnxruntime-qnn": f"1 sha256:{A}"}),
        "EPB246",
        (
            "the catalog entry of QNNExecutionProvider/onnxruntime-qnn has changed since epbuild.lock was created: "
            "revision 1 has different content"
        ),
    ),
    (
        lambda lock: replace(lock, catalog={**lock.catalog, "OtherExecutionProvider": "1"}),
        "EPB246",
        "epbuild.lock has a catalog revision for OtherExecutionProvider, which no target uses",
    ),
    (
        lambda lock: replace(lock, catalog={"session-keys": lock.catalog["session-keys"]}),
        "EPB246",
        "epbuild.lock has no catalog revision for QNNExecutionProvider/onnxruntime-qnn",
    ),
    (lambda lock: replace(lock, models={}), "EPB247", "the remote model 'decode' is not in epbuild.lock"),
    (
        lambda lock: replace(lock, models={**lock.models, "prefill": LockedModel(A)}),
        "EPB247",
        "epbuild.lock has a remote model 'prefill', which the recipe does not use",
    ),
]


@pytest.mark.parametrize(("change", "code", "message"), OTHER_MISFITS)
def test_any_deviation_is_refused_with_locked_and_a_warning_without_it(
    workshop: LockedWorkshop, change: Callable[[Lock], Lock], code: str, message: str
) -> None:
    workshop.write_lock(change(workshop.fitting))
    error = workshop.refusal()
    assert [(problem.code, problem.message) for problem in error.problems] == [(code, message)]
    assert workshop.network.asked == []
    assert workshop.build().exit_code == 0
    assert [(problem.code, problem.message) for problem in workshop.warnings] == [(code, message)]
    assert workshop.made_with == [ENVIRONMENT], "the toolchains are as they are locked"


def test_a_pin_that_differs_from_the_lock_is_refused_before_a_fetch(workshop: LockedWorkshop) -> None:
    workshop.write_recipe((REMOTE[0], REMOTE[1].replace(PIN, A)))
    (problem,) = workshop.refusal().problems
    assert (problem.code, workshop.network.asked) == ("EPB247", [])
    assert problem.message == "the recipe and epbuild.lock pin different content for the model 'decode'"


def test_all_deviations_are_reported_in_one_run(workshop: LockedWorkshop) -> None:
    workshop.write_lock(replace(workshop.fitting, toolchains={}, models={}, catalog={}))
    assert {problem.code for problem in workshop.refusal().problems} == {"EPB244", "EPB246", "EPB247"}


def test_the_lock_of_another_recipe_is_refused_with_locked_or_ignored(workshop: LockedWorkshop) -> None:
    workshop.write_lock(replace(workshop.fitting, recipe="large", models={}))
    error = workshop.refusal()
    assert [problem.code for problem in error.problems] == ["EPB243"]
    assert error.problems[0].message == "epbuild.lock is the lock of another recipe: 'large', not 'small'"
    assert error.exit_code == 2
    assert workshop.build().exit_code == 0
    [warning] = workshop.warnings
    assert (warning.code, warning.hint) == (
        "EPB243",
        "The lock is not used. Run `epbuild lock` to replace it with a lock of this recipe.",
    )
    assert workshop.made_with == [None]


def test_an_unlocked_platform_is_refused_with_locked_and_provisioned_without_it(workshop: LockedWorkshop) -> None:
    toolchain = LockedToolchain(("onnxruntime-qnn==2.7.0",), {"windows-arm64": ENVIRONMENT})
    workshop.write_lock(replace(workshop.fitting, toolchains={"qnn": toolchain}))
    with pytest.raises(PlanError) as caught:
        survey(replace(workshop.request, locked=True))
    (problem,) = caught.value.problems
    assert problem.code == "EPB245"
    assert problem.message == "epbuild.lock does not have the toolchain 'qnn' for this platform, linux-x86_64"
    assert problem.hint == "Run `epbuild lock` here, or add the platform to the toolchain's 'platforms'."
    assert workshop.build().exit_code == 0
    assert [warning.code for warning in workshop.warnings] == ["EPB245"]
    assert workshop.made_with == [None]


def test_a_toolchain_of_unselected_steps_needs_no_lock_for_this_platform(workshop: LockedWorkshop) -> None:
    vendor = "  vendor: {interpreter: 'C:/ryzen-ai/python.exe'}\n"
    target = "  laptop: {toolchain: vendor, ep: VitisAIExecutionProvider}\n"
    workshop.write_recipe(REMOTE, ("models: {", f"{vendor}models: {{"), ("groups:\n", f"{target}groups:\n"))
    facts = collect_catalog_facts(load(workshop.folder / "epbuild.yaml"))
    elsewhere = LockedToolchain((), {"windows-x86_64": LockedEnvironment("cpython-3.10", (Package("onnxruntime-vitisai", "1"),))})
    workshop.write_lock(replace(workshop.fitting, toolchains={**workshop.fitting.toolchains, "vendor": elsewhere}, catalog=facts))
    events = EventList()
    assert run(replace(workshop.request, locked=True), events, fetcher=workshop.fetcher) == 0
    assert not [event for event in events if isinstance(event, Warned)]


def test_a_damaged_lock_stops_every_build(workshop: LockedWorkshop) -> None:
    place = workshop.folder / "epbuild.lock"
    place.write_text(f"<<<<<<< ours\n{place.read_text(encoding='utf-8')}", encoding="utf-8")
    for locked in (False, True):
        with pytest.raises(PlanError) as caught:
            run(replace(workshop.request, locked=locked), NoProgress(), fetcher=workshop.fetcher)
        (problem,) = caught.value.problems
        assert (problem.code, problem.message, str(problem.where)) == ("EPB242", "the lock has a merge conflict", f"{place}:1:1")
    assert workshop.compiled == []


# -- Wheels of models --------------------------------------------------------------------------------------------------

IN_WHEEL = (REMOTE[0], "decode: package:my-models==1.1/decode.onnx")
OTHER_WHEELS = [
    ([], "epbuild.lock does not have the wheel of my-models==1.1, which contains the model 'decode'"),
    (
        [Package("my-models", "1.0", (A,))],
        (
            "epbuild.lock does not have the wheel of my-models==1.1, which contains the model 'decode'; "
            "the lock has the wheel of my-models==1.0"
        ),
    ),
    (
        [Package("my-models", "1.0", (A,)), Package("my-models", "1.1", (B,))],
        "epbuild.lock has the wheel of my-models==1.0, which no model of the recipe uses",
    ),
]


def test_a_wheel_must_be_one_of_the_locked_wheels(workshop: LockedWorkshop) -> None:
    workshop.write_recipe(IN_WHEEL)
    workshop.write_lock(replace(workshop.fitting, wheels=(Package("my-models", "1.1", (A, B)),)))
    for locked in (False, True):
        assert run(replace(workshop.request, locked=locked), NoProgress(), fetcher=workshop.fetcher) == 0
    assert workshop.network.asked[-1][1].wheels == {"my-models==1.1": (A, B)}


@pytest.mark.parametrize(("wheels", "message"), OTHER_WHEELS)
def test_a_lock_without_the_wheel_is_refused_with_locked_or_reported(
    workshop: LockedWorkshop, wheels: list[Package], message: str
) -> None:
    workshop.write_recipe(IN_WHEEL)
    workshop.write_lock(replace(workshop.fitting, wheels=tuple(wheels)))
    assert [(problem.code, problem.message) for problem in workshop.refusal().problems] == [("EPB297", message)]
    assert workshop.network.asked == []
    assert workshop.build().exit_code == 0
    assert [(problem.code, problem.message) for problem in workshop.warnings] == [("EPB297", message)]


def test_wheels_in_the_lock_of_another_recipe_are_ignored(workshop: LockedWorkshop) -> None:
    workshop.write_recipe(IN_WHEEL)
    workshop.write_lock(replace(workshop.fitting, recipe="large", wheels=(Package("my-models", "1.1", (A,)),)))
    assert workshop.build().exit_code == 0
    assert workshop.network.asked[-1][1].wheels == {}


# -- Deviations found during the build ---------------------------------------------------------------------------------


def test_a_model_with_other_bytes_is_refused_with_locked_or_reported(workshop: LockedWorkshop) -> None:
    commit = "c" * 40
    workshop.write_recipe((REMOTE[0], f"decode: 'hf://acme/tiny/decode.onnx@{commit}'"))
    workshop.network.files["fetched.onnx"] = source_model(7.0)
    with pytest.raises(PlanError) as caught:
        run(replace(workshop.request, locked=True), NoProgress(), fetcher=workshop.fetcher)
    (problem,) = caught.value.problems
    assert (problem.code, problem.message) == ("EPB247", "the files of the remote model 'decode' differ from epbuild.lock: graph")
    assert workshop.compiled == []
    assert workshop.build().exit_code == 0
    assert [warning.code for warning in workshop.warnings] == ["EPB247"]


def test_a_differing_environment_is_refused_with_locked_or_reported(workshop: LockedWorkshop) -> None:
    workshop.packages = {"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0", "numpy": "2.0"}
    error = workshop.refusal()
    assert isinstance(error, ToolchainError)
    (problem,) = error.problems
    assert (problem.code, error.exit_code) == ("EPB308", 3)
    assert problem.message == "the toolchain 'qnn' does not match epbuild.lock: the package numpy 2.0 is not locked"
    assert workshop.build().exit_code == 0
    assert [warning.code for warning in workshop.warnings] == ["EPB308"]


def test_the_versions_of_an_existing_environment_are_checked(workshop: LockedWorkshop) -> None:
    workshop.write_recipe(REMOTE, ("{packages: [onnxruntime-qnn==2.7.0]}", "{interpreter: python}"))
    packages = tuple(replace(package, files=()) for package in ENVIRONMENT.packages)
    lock = replace(workshop.fitting, toolchains={"qnn": LockedToolchain((), {HERE: replace(ENVIRONMENT, packages=packages)})})
    workshop.write_lock(lock)
    assert run(replace(workshop.request, locked=True), NoProgress(), fetcher=workshop.fetcher) == 0
    workshop.packages["onnxruntime"] = "1.32.0"
    (problem,) = workshop.refusal().problems
    assert (
        problem.message
        == "the toolchain 'qnn' does not match epbuild.lock: the version of onnxruntime is 1.32.0 instead of 1.31.1"
    )
    assert problem.hint == "Fix the toolchain's environment, or run `epbuild lock`."


def test_selected_steps_are_checked_against_the_lock(workshop: LockedWorkshop) -> None:
    request = replace(workshop.request, selection=(EMIT_DECODER,), locked=True)
    assert run(request, NoProgress(), fetcher=workshop.fetcher) == 0
    workshop.write_lock(replace(workshop.fitting, recipe="large"))
    with pytest.raises(PlanError, match="EPB243"):
        run(request, NoProgress(), fetcher=workshop.fetcher)
