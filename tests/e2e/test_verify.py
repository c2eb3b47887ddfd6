"""`verify` and `inspect` on artifacts of the real QNN EP, compared with checks made without epbuild."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.support.projects import Project, toolchain_python
from tests.support.quick_builds import write_model

ROOT = Path(__file__).parents[2]
HOSTILE = ROOT / "tests" / "support" / "hostile_artifacts.py"

RECIPE = """\
epbuild: 1
name: verified
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {first: first.onnx, second: second.onnx, other: other.onnx}
targets:
  npu:
    matrix: {soc: [SM8750, SC8380XP]}
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {backend_type: htp, soc_model: "${matrix.soc}"}
groups:
  shared: {models: [first, second], targets: [npu-SM8750], share_weights: true}
  alone: {models: [other], targets: [npu-*]}
  embedded: {models: [other], targets: [npu-SM8750], compile: {embed: true}}
outputs:
  - {layout: directory, path: "dist/${group}/${target}"}
"""

SHARED, ALONE, EMBEDDED = "shared/npu-SM8750", "alone/npu-SM8750", "embedded/npu-SM8750"
MODEL, BINARY = "second_ctx.onnx", "first_qnn.bin"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return emitted files, which tests must not change."""
    project = Project(tmp_path_factory.mktemp("verified"), tmp_path_factory.mktemp("cache"))
    for name, seed in {"first": 1, "second": 1, "other": 2}.items():
        write_model(project.folder / f"{name}.onnx", seed)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    project.build()
    return project.folder / "dist"


@pytest.fixture
def shared(dist: Path, tmp_path: Path) -> Path:
    """Copy the folder of the sharing group, with another model's files beside it."""
    shutil.copytree(dist / ALONE, tmp_path / "alone")
    shutil.copytree(dist / SHARED, tmp_path / "shared")
    return tmp_path / "shared"


def epbuild(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return Project(folder, folder / ".cache").epbuild(*map(str, arguments))


def failed(path: Path) -> set[tuple[str, str, str]]:
    """Return the check, the subject and the code of each failed finding."""
    done = epbuild(path.parent, "verify", path, "--json")
    document = json.loads(done.stdout)
    found = {(row["check"], row["subject"], row["code"]) for row in document["findings"] if row["outcome"] == "failed"}
    assert done.returncode == (1 if found else 0), done.stderr
    return found


def test_emitted_artifacts_pass_every_check_without_skips(dist: Path) -> None:
    document = json.loads(epbuild(dist, "verify", dist, "--json").stdout)
    assert document["counts"]["failed"] == 0
    assert [row for row in document["findings"] if row["outcome"] == "skipped"] == []
    assert {row["check"] for row in document["findings"]} == {
        "manifest", "files", "digests", "model", "schema", "references", "source data", "source", "target", "partitions", "sharing",
        "signature",
    }  # fmt: skip
    told = [row["message"] for row in document["findings"] if row["check"] == "target"]
    assert {"It was compiled for SM8750.", "It was compiled for SC8380XP."} <= set(told)


def change(edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / BINARY).write_bytes(edit((folder / BINARY).read_bytes()))

    return spoil


def attribute(name: str, value: object) -> Callable[[Path], None]:
    """Replace or remove an attribute of the model's node."""

    def spoil(folder: Path) -> None:
        model = onnx.load(folder / MODEL)
        [node] = model.graph.node
        [found] = [attribute for attribute in node.attribute if attribute.name == name]
        node.attribute.remove(found)
        if value is not None:
            node.attribute.append(onnx.helper.make_attribute(name, value))
        onnx.save(model, folder / MODEL)

    return spoil


def link(folder: Path) -> None:
    (folder / BINARY).rename(folder.parent / BINARY)
    (folder / BINARY).symlink_to(Path("..") / BINARY)


def zeroed(content: bytes) -> bytes:
    """Set 64 bytes in the middle to zero, which EPs load without an error."""
    middle = len(content) // 2
    while not any(content[middle : middle + 64]):
        middle += 64
    return content[:middle] + bytes(64) + content[middle + 64 :]


DIGEST, EDITED = ("digests", BINARY, "EPB613"), ("digests", MODEL, "EPB613")
GRAPH = "QNNExecutionProvider_QNNExecutionProvider_5_1_0"
REFERENCE = ("references", MODEL, "EPB605")

FAULTS: dict[str, tuple[Callable[[Path], object], set[tuple[str, str, str]]]] = {
    "missing binary": (lambda folder: (folder / BINARY).unlink(), {("files", BINARY, "EPB615"), REFERENCE}),
    "empty binary": (change(lambda _: b""), {DIGEST, REFERENCE}),
    "truncated binary": (change(lambda content: content[: len(content) // 2]), {DIGEST}),
    "last byte cut off": (change(lambda content: content[:-1]), {DIGEST}),
    "first byte flipped": (change(lambda content: bytes([content[0] ^ 1]) + content[1:]), {DIGEST}),
    "last byte flipped": (change(lambda content: content[:-1] + bytes([content[-1] ^ 1])), {DIGEST}),
    "64 bytes zeroed": (change(zeroed), {DIGEST}),
    "random file": (change(lambda content: os.urandom(len(content))), {DIGEST}),
    "another model's binary": (
        lambda folder: shutil.copy(folder.parent / "alone" / "other_qnn.bin", folder / BINARY),
        {DIGEST, ("partitions", MODEL, "EPB618")},
    ),
    "'..' out of the folder": (attribute("ep_cache_context", f"../{BINARY}"), {EDITED, REFERENCE}),
    "'..' inside the folder": (attribute("ep_cache_context", f"b/../{BINARY}"), {EDITED, REFERENCE}),
    "absolute path": (attribute("ep_cache_context", f"/opt/{BINARY}"), {EDITED, REFERENCE}),
    "backslash": (attribute("ep_cache_context", f"b\\{BINARY}"), {EDITED, REFERENCE}),
    "empty reference": (attribute("ep_cache_context", ""), {EDITED, ("schema", MODEL, "EPB614"), REFERENCE}),
    "no reference": (attribute("ep_cache_context", None), {EDITED, ("schema", MODEL, "EPB614")}),
    "another EP's source": (attribute("source", "OpenVINOExecutionProvider"), {EDITED, ("source", MODEL, "EPB604")}),
    "unknown source": (attribute("source", "openvino"), {EDITED, ("source", MODEL, "EPB604")}),
    "no source": (attribute("source", None), {EDITED, ("source", MODEL, "EPB604")}),
    "edited SDK version": (attribute("ep_sdk_version", "2099.9"), {EDITED}),
    "edited partition": (attribute("partition_name", GRAPH), {EDITED, ("partitions", MODEL, "EPB618")}),
    "main_context 0": (attribute("main_context", 0), {EDITED, ("schema", MODEL, "EPB614")}),
    "no embed_mode": (attribute("embed_mode", None), {EDITED, ("schema", MODEL, "EPB614")}),
    "embed_mode 1 with a path": (attribute("embed_mode", 1), {EDITED, ("schema", MODEL, "EPB614")}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_that_break_loading_are_found_without_an_ep(shared: Path, name: str) -> None:
    spoil, expected = FAULTS[name]
    spoil(shared)
    assert expected <= failed(shared)


@pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")
def test_a_link_out_of_the_artifact_is_found_although_eps_follow_links(shared: Path) -> None:
    link(shared)
    assert {("files", BINARY, "EPB615"), REFERENCE} <= failed(shared)


def test_a_binary_for_another_soc_is_found_although_x86_loads_the_file(dist: Path, tmp_path: Path) -> None:
    shutil.copytree(dist / ALONE, tmp_path / "alone")
    shutil.copy(dist / "alone/npu-SC8380XP/other_qnn.bin", tmp_path / "alone")
    assert failed(tmp_path / "alone") == {("digests", "other_qnn.bin", "EPB613"), ("target", "other_qnn.bin", "EPB608")}


@pytest.mark.parametrize("name", ["name", "shape"])
def test_renamed_or_reshaped_inputs_are_found(shared: Path, name: str) -> None:
    model = onnx.load(shared / MODEL)
    value = model.graph.input[0]
    if name == "name":
        value.name = model.graph.node[0].input[0] = "renamed"
    else:
        value.type.tensor_type.shape.dim[1].dim_value = 32
    onnx.save(model, shared / MODEL)
    assert failed(shared) == {EDITED, ("signature", MODEL, "EPB617")}


BY_HAND = """
import os
import sys

import onnxruntime
import onnxruntime_qnn

EP = "QNNExecutionProvider"
onnxruntime.register_execution_provider_library(EP, onnxruntime_qnn.get_library_path())
device = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == EP)


def options(entries=()):
    made = onnxruntime.SessionOptions()
    made.add_provider_for_devices([device], {"backend_type": "htp", "soc_model": "SM8750"})
    for name, value in entries:
        made.add_session_config_entry(name, value)
    return made


how, source, output = sys.argv[1:]
if how == "legacy":
    onnxruntime.InferenceSession(source, options([("ep.context_enable", "1"), ("ep.context_file_path", output)]))
else:
    onnxruntime.ModelCompiler(options(), source, embed_compiled_data_into_model=how == "embedded").compile_to_file(output)
os._exit(0)
"""


@pytest.mark.parametrize("how", ["compiler", "embedded", "legacy"])
def test_models_compiled_without_epbuild_are_inspected_and_verified_too(dist: Path, tmp_path: Path, how: str) -> None:
    script, made = tmp_path / "by_hand.py", tmp_path / "made"
    script.write_text(BY_HAND, encoding="utf-8")
    made.mkdir()
    write_model(tmp_path / "m.onnx", 3)
    command = [str(toolchain_python("onnxruntime-qnn")), "-I", str(script), how, "m.onnx", "made/m_ctx.onnx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    model = made / "m_ctx.onnx"
    assert failed(made) == failed(model) == set()
    [node] = json.loads(epbuild(made, "inspect", model, "--json").stdout)["ep_context_nodes"]
    assert (node["target"], node["embed_mode"], node["problem"]) == ("SM8750", int(how == "embedded"), None)
    assert epbuild(made, "inspect", model).returncode == 0
    if how == "embedded":
        return
    [binary] = made.glob("*.bin")
    shutil.copy(dist / ALONE / "other_qnn.bin", binary)
    assert failed(model) == {("partitions", "m_ctx.onnx", "EPB618")}
    binary.unlink()
    assert failed(model) == {("references", "m_ctx.onnx", "EPB605")}
    assert epbuild(made, "inspect", model).returncode == 1


def test_inspecting_a_sharing_group_shows_the_bytes_saved(dist: Path) -> None:
    found = json.loads(epbuild(dist, "inspect", dist / SHARED, "--json").stdout)
    [shared] = found["shared"]
    size = (dist / SHARED / BINARY).stat().st_size
    assert (Path(shared["file"]).name, shared["size"], shared["saved"], len(shared["models"])) == (BINARY, size, size, 2)
    assert all(
        len(line) <= 80 or " " not in line.strip() for line in epbuild(dist / SHARED, "inspect", MODEL).stdout.splitlines()
    )


@pytest.mark.exhaustive  # by day, tests/verify/test_hostile_artifacts.py damages artifacts without an EP
@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory and the peak of it are those of Linux")
def test_thousands_of_damaged_artifacts_do_no_harm(dist: Path, tmp_path: Path) -> None:
    """Allow only errors of epbuild, no file outside the artifact, and at most 500 MB."""
    inputs, seconds = 20_000, 2400
    for number, name in enumerate((SHARED, ALONE, EMBEDDED)):
        shutil.copytree(dist / name, tmp_path / "corpus" / str(number))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    memory = Path("/dev/shm")  # writing the damaged files to a disk takes longer than checking them
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as work:
        halves = [
            subprocess.Popen(
                [sys.executable, HOSTILE, tmp_path / "corpus", Path(work) / str(seed), str(inputs // 2), str(seed)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
            for seed in (1, 2)
        ]
        ended = [(half.communicate(timeout=seconds), half.returncode) for half in halves]
    for (out, error), code in ended:
        assert code == 0, error
        found = json.loads(out.splitlines()[-1])
        assert (found["traces"], found["outside"]) == ([], {})
        assert (found["inputs"], found["crashes"]) == (inputs // 2, 0)
        assert found["peak"] < 500_000_000
        assert min(found["outcomes"][outcome] for outcome in ("inspected", "passed", "failed")) > inputs / 200
