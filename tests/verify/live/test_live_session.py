"""Live sessions: the toolchain, the device and the options of the compile."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import field
from msgspec.structs import replace
from onnx import helper

from epbuild.catalog.catalog import entries_for, entry
from epbuild.core.errors import Position, Problem, ToolchainError
from epbuild.core.shown import discard_line
from epbuild.plan.custom_ops import CustomOpLibraries
from epbuild.plan.steps import SessionGroup
from epbuild.plan.target import OptionFile, PlannedEp
from epbuild.recipe.model import DeviceChoice
from epbuild.toolchain.environment import Environment, Toolchains
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.toolchain.provision import Requirements
from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.facts import Model
from epbuild.verify.live.options import LoadOptions
from epbuild.verify.live.session import CannotLoad, open_artifact_session
from epbuild.verify.live.source import Sources
from epbuild.verify.live.toolchain import Wanted, inspect_interpreter, provision_manifest_toolchain
from epbuild.verify.live.worker import Session
from epbuild.verify.manifest import Manifest
from tests.support.fake_builds import sharing_group

QNN = "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
HERE = f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}"
PACKAGES = {"numpy": "2.4.6", "onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0"}
DOCUMENT: Mapping[str, Any] = {"python": HERE, "platform": "linux-x86_64", "distributions": PACKAGES}
PINS = ("onnxruntime-qnn==2.7.0", "onnxruntime==1.31.1")


class Home(Toolchains, frozen=True):
    """Folder of toolchains whose contents `holds` lists by requirements. It records each request."""

    holds: dict[tuple[str, ...], Mapping[str, str]] = field(default_factory=dict)
    asked: list[tuple[tuple[str, ...], str | None]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    packages: dict[str, Any] = field(default_factory=dict)

    def is_ready(self, *asked: object, **more: object) -> bool:
        return False

    def add(self, *packages: str, python: str | None = None, holds: Mapping[str, str]) -> None:
        place = self.home / Requirements(packages, python).digest()
        place.mkdir()
        (place / "complete").write_text(json.dumps(sorted(packages)), encoding="utf-8")
        self.holds[tuple(sorted(packages))] = holds

    def prepare(
        self,
        toolchain: Any,
        base: Path,
        entries: Any,
        locked: object = None,
        packages: Any = (),
        listener: object = None,
    ) -> Environment:
        self.packages.clear()
        self.packages.update(packages)
        if toolchain.interpreter is not None:
            distributions: Mapping[str, str] = json.loads(Path(toolchain.interpreter).read_text(encoding="utf-8"))
            if not all(set(item.distributions) & set(distributions) for item in entries):
                raise ToolchainError(Problem("EPB305", "no package", toolchain.where))
            return self.environment(distributions)
        packages = tuple(sorted(toolchain.packages))
        self.asked.append((packages, toolchain.python))
        holds = self.holds.get(packages)
        if holds is not None and not all(set(item.distributions) & set(holds) for item in entries):
            raise ToolchainError(Problem("EPB305", "no package", toolchain.where))
        return self.environment(holds or {})

    def environment(self, distributions: Mapping[str, str]) -> Environment:
        return Environment("verify", Path("python"), Fingerprint(HERE, "linux-x86_64", distributions, {}), Path("none"))

    def find(self, document: Mapping[str, Any] = DOCUMENT) -> Environment:
        return provision_manifest_toolchain(document, Wanted([entry(QNN)]), self.home / "manifest.json", self, self.said.append)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_toolchain_with_equal_distributions_is_used_for_any_request(home: Home) -> None:
    home.add("onnxruntime", "onnxruntime-qnn", holds=PACKAGES)
    assert home.find().fingerprint.distributions == PACKAGES
    assert home.asked == [(("onnxruntime", "onnxruntime-qnn"), None)]
    assert home.said == []


@pytest.mark.parametrize(
    ("packages", "holds"),
    [
        (("onnxruntime==1.31.0", "onnxruntime-qnn==2.7.0"), {**PACKAGES, "onnxruntime": "1.31.0"}),
        (("onnxruntime", "onnxruntime-qnn"), {**PACKAGES, "onnxruntime": "1.31.0"}),
        (("onnxruntime-qnn", "rich"), {**PACKAGES, "rich": "13.9"}),
    ],
)
def test_another_distribution_set_leads_to_a_new_announced_toolchain(
    home: Home, packages: tuple[str, ...], holds: Mapping[str, str]
) -> None:
    home.add(*packages, holds=holds)
    home.find()
    assert home.asked[-1] == (tuple(sorted(PINS)), None)
    assert home.said == ["creating an environment with onnxruntime==1.31.1, onnxruntime-qnn==2.7.0"]


def test_a_locked_toolchain_is_used_unchanged(home: Home) -> None:
    place = home.home / "locked-0123456789abcdef0123"
    python = place / ("env/Scripts/python.exe" if sys.platform == "win32" else "env/bin/python")
    python.parent.mkdir(parents=True)
    python.write_text(json.dumps(PACKAGES), encoding="utf-8")
    (place / "complete").write_text(json.dumps([f"{name}=={version}" for name, version in PACKAGES.items()]), encoding="utf-8")
    assert home.find().fingerprint.distributions == PACKAGES
    assert (home.asked, home.said) == ([], [])


def test_toolchains_of_other_eps_and_broken_toolchains_are_skipped(home: Home) -> None:
    """Check this for any names of the folders, and thus for any order of the search."""
    for number in range(4):
        home.add(f"onnxruntime>=1.{number}", holds={"numpy": "2.4.6", "onnxruntime": "1.31.1"})
    home.add("onnxruntime", "onnxruntime-qnn", holds=PACKAGES)
    for number in range(4, 8):
        home.add(f"onnxruntime>=1.{number}", holds={"numpy": "2.4.6", "onnxruntime": "1.31.1"})
    assert home.find().fingerprint.distributions == PACKAGES
    assert home.said == []


def test_a_toolchain_with_a_damaged_marker_is_skipped(home: Home) -> None:
    (home.home / "broken").mkdir()
    (home.home / "broken/complete").write_text("[", encoding="utf-8")
    home.find()
    assert len(home.asked) == 1


def test_the_python_version_of_the_manifest_is_requested(home: Home) -> None:
    home.find({**DOCUMENT, "python": "cpython-3.99"})
    assert home.asked == [(tuple(sorted(PINS)), "3.99")]


def test_a_manifest_without_a_runtime_requires_an_interpreter(home: Home) -> None:
    with pytest.raises(ToolchainError, match="--interpreter"):
        home.find({**DOCUMENT, "distributions": {}})


def test_the_interpreter_determines_the_packaging_of_an_ep(home: Home) -> None:
    interpreter = home.home / "python"
    for distribution, kind in (("onnxruntime-openvino", "provider"), ("onnxruntime-ep-openvino", "plugin")):
        interpreter.write_text(json.dumps({"onnxruntime": "1", distribution: "1"}), encoding="utf-8")
        _, (found,) = inspect_interpreter(interpreter, [entries_for(OPENVINO)], [], home)
        assert found.kind == kind
    interpreter.write_text(json.dumps({"onnxruntime": "1"}), encoding="utf-8")
    with pytest.raises(ToolchainError, match="no package") as raised:
        inspect_interpreter(interpreter, [entries_for(OPENVINO)], [], home)
    assert raised.value.problems[0].where == interpreter  # a position, and no line of a program


def artifact(folder: Path, ep: str = QNN, *, device: Mapping[str, Any] | None = None, **options: str) -> ArtifactFolder:
    listed = {"ep": ep, "provider_options": options, **({"device": device} if device else {})}
    document = {
        "group": "g",
        "target": {"name": "npu", "eps": [listed], "session_options": {"session.x": "1"}, "environment": {"A": "b"}},
        "toolchain": DOCUMENT,
        "models": [],
    }
    return ArtifactFolder(folder, (), "", Manifest("g", "npu", False, {ep: options}, (), {}, None, document))


class Recipe(Sources, frozen=True, kw_only=True):
    """Recipe with one EP as planned."""

    planned: PlannedEp

    def find_eps(self, document: Mapping[str, Any] | None) -> dict[str, PlannedEp]:
        return {self.planned.entry.ep: self.planned}


def opened(home: Home, found: ArtifactFolder, sources: Sources = Sources({}), **wanted: Any) -> Session:  # noqa: B008 - frozen
    return open_artifact_session(found, LoadOptions(**wanted), sources, home, discard_line)


def test_a_session_uses_options_and_variables_of_the_manifest(home: Home) -> None:
    session = opened(home, artifact(home.home, backend_type="htp", soc_model="SM8750"))
    (ep,) = session.eps
    assert ep.provider_options == {"backend_type": "htp", "soc_model": "SM8750"}
    assert (session.options, session.variables, session.lacking) == ({"session.x": "1"}, {"A": "b"}, ())


def test_a_users_options_and_device_override_the_manifest(home: Home) -> None:
    wanted: Any = {"device": "gpu", "ep_options": {"soc_model": "SM8650", "vtcm_mb": "8"}}
    (ep,) = opened(home, artifact(home.home, device={"type": "npu", "vendor": "Q"}, soc_model="SM8750"), **wanted).eps
    assert ep.provider_options == {"soc_model": "SM8650", "vtcm_mb": "8"}
    assert ep.device == DeviceChoice(type="gpu")


def test_a_virtual_device_of_the_manifest_drops_its_metadata(home: Home) -> None:
    (ep,) = opened(home, artifact(home.home, device={"type": "npu", "vendor": "Q", "metadata": {"soc": "60"}})).eps
    assert ep.device == DeviceChoice("npu", "Q", {"soc": "60"})
    (ep,) = opened(home, artifact(home.home, device={"type": "npu", "metadata": {"soc": "60"}, "virtual": True})).eps
    assert ep.device == DeviceChoice("npu")


def test_an_option_file_is_the_recipes_or_the_option_is_omitted(home: Home) -> None:
    staged = "options/qnn/backend_path/0/libMine.so"
    found = artifact(home.home, backend_path=staged, soc_model="SM8750")
    session = opened(home, found)
    assert session.eps[0].provider_options == {"soc_model": "SM8750"}
    assert session.lacking == ("backend_path",)
    mine = home.home / "libMine.so"
    files = {"backend_path": OptionFile(mine, staged)}
    planned = PlannedEp(entry(QNN), DeviceChoice("npu"), {}, files, home.home / "ep.so", frozenset())
    session = opened(home, found, sources=Recipe({}, planned=planned))
    (ep,) = session.eps
    assert (ep.provider_options["backend_path"], session.lacking) == (str(mine.resolve()), ())
    assert (ep.device.type, ep.library) == ("npu", home.home / "ep.so")


def test_an_unknown_ep_is_reported_with_a_hint(home: Home) -> None:
    with pytest.raises(CannotLoad, match=r"AcmeExecutionProvider is not in the catalog; .* --recipe"):
        opened(home, artifact(home.home, "AcmeExecutionProvider"))


def test_a_model_without_manifest_needs_an_interpreter_and_names_its_ep(home: Home) -> None:
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", source="QNN")
    graph = helper.make_graph([node], "g", [], [])
    (home.home / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    found = ArtifactFolder(home.home, (Model(home.home, "m.onnx"),), whole=False)
    with pytest.raises(CannotLoad, match="--interpreter"):
        opened(home, found)
    interpreter = home.home / "python"
    interpreter.write_text(json.dumps(PACKAGES), encoding="utf-8")
    session = opened(home, found, interpreter=interpreter, ep_options={"backend_type": "htp"})
    assert [(ep.entry.ep, ep.provider_options) for ep in session.eps] == [(QNN, {"backend_type": "htp"})]


def with_ops(folder: Path, *ops: Mapping[str, str]) -> ArtifactFolder:
    found = artifact(folder)
    assert found.manifest is not None
    document = {**found.manifest.document, "custom_ops": list(ops)}
    return dataclasses.replace(found, manifest=replace(found.manifest, document=document))


PACKAGE_OPS = {"module": "acme_ops"}
LIBRARY_OPS = {"library": "libmine.so", "sha256": "ab" * 32}


def test_a_custom_operator_package_is_required_or_added_to_a_new_toolchain(home: Home) -> None:
    session = opened(home, with_ops(home.home, PACKAGE_OPS))
    assert [(ops.name, ops.library) for ops in session.custom_ops] == [("acme_ops", None)]
    assert list(home.packages) == ["acme_ops"]
    assert set(Wanted([entry(QNN)], ["acme_ops"]).list_pins({**PACKAGES, "acme-ops": "1.0"})) == {"acme-ops==1.0", *PINS}
    assert Wanted([entry(QNN)], ["acme_ops"]).list_pins({"acme-ops": "1.0"}) == [], "there is no ONNX Runtime to load with"


def test_a_library_of_custom_operators_is_found_at_the_users_path(home: Home) -> None:
    with pytest.raises(
        CannotLoad, match=r"needs the custom operators of libmine\.so, which is not in the artifact; .*--custom-ops"
    ):
        opened(home, with_ops(home.home, LIBRARY_OPS))
    session = opened(home, with_ops(home.home, LIBRARY_OPS), custom_ops=("/lib/theirs.so", "acme_ops"))
    assert [(ops.name, ops.library) for ops in session.custom_ops] == [("theirs.so", Path("/lib/theirs.so")), ("acme_ops", None)]


def test_a_library_of_custom_operators_is_found_through_the_recipe(home: Home) -> None:
    mine = CustomOpLibraries("libmine.so", Position("epbuild.yaml", 1, 1), home.home / "libmine.so")
    group = replace(sharing_group("prefill"), custom_ops=(mine,))

    class Planned(Sources, frozen=True):
        def find_group(self, document: Mapping[str, Any] | None, member: str | None = None) -> SessionGroup | None:
            return group

        def find_eps(self, document: Mapping[str, Any] | None) -> dict[str, PlannedEp]:
            return {}

    assert opened(home, with_ops(home.home, LIBRARY_OPS), sources=Planned({})).custom_ops == (mine,)
