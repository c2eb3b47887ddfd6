"""Outputs that ship prepared models, built from a remote cache or from a store that has lost blobs."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from epbuild.remote.keys import SigningKey
from tests.support.gate import mark_rest_exhaustive
from tests.support.projects import Project, compiled
from tests.support.quick_builds import write_project
from tests.support.registry_server import Registry, serving

pytestmark = pytest.mark.gate

KEY = SigningKey.generate()
PREPARED = """\
models:
  left:
    path: left.onnx
    prepare:
      - {infer_shapes: {}, toolchain: tools}
      - {run: [python, scripts/move.py, "${in}", "${out}"], files: [scripts], toolchain: tools}
  right: right.onnx
"""
MOVE = """\
import sys

import onnx

model = onnx.load(sys.argv[1])
onnx.save(model, sys.argv[2], save_as_external_data=True, location="left.data", size_threshold=0)
"""
LAYOUTS = {
    "directory": '{layout: directory, path: "dist/${group}", include_source: "base/${model}.onnx", provenance: true, sbom: true}',
    "archive": '{layout: directory, path: "dist/${group}.zip", archive: zip, include_source: "base/${model}.onnx"}',
    "package": '{layout: ort-model-package, path: dist/quick.ortpackage, include_source: "${model}.onnx"}',
}
PREPARATIONS = {"prepare:left/1-infer_shapes", "prepare:left/2-run"}  # the first was never fetched


def machine(folder: Path, output: str) -> Project:
    """Return a project with an empty store that shares results through a folder beside it."""
    folder.mkdir()
    project = write_project(Project(folder / "project", folder / "cache"))
    project.edit("epbuild: 1\n", f"epbuild: 1\ncache: {{remote: '{folder.parent / 'remote'}', trust: ['{KEY.public}']}}\n")
    project.edit("models: {left: left.onnx, right: right.onnx}\n", PREPARED)
    project.edit("toolchains:\n", "toolchains:\n  tools: {packages: [onnx==1.19.1]}\n")
    project.edit('{layout: directory, path: "dist/${group}"}', output)
    (project.folder / "scripts").mkdir()
    (project.folder / "scripts/move.py").write_text(MOVE, encoding="utf-8")
    project.environment["EPBUILD_SIGNING_KEY"] = KEY.text
    return project


def lose(project: Project, digest: str) -> None:
    [blob] = (project.cache / "cas/sha256").rglob(digest)
    blob.chmod(0o644)
    blob.unlink()


@pytest.mark.parametrize("layout", mark_rest_exhaustive(LAYOUTS, sample=["archive"]))
def test_a_prepared_model_is_emitted_from_a_remote_cache_or_rebuilt(tmp_path: Path, layout: str) -> None:
    writer, reader = (machine(tmp_path / name, LAYOUTS[layout]) for name in ("writer", "reader"))
    writer.build("--remote-cache", "write")
    made = writer.files()

    assert compiled(reader.build()) == set()
    assert reader.files() == made
    assert "Nothing to do" in reader.epbuild("run").stdout

    prepared = [path for path in (reader.cache / "cas/sha256").rglob("*") if path.is_file() and _is_prepared(path)]
    assert prepared, "the store has the files of the prepared model"
    for options, again in ((("--remote-cache", "off"), PREPARATIONS), ((), set[str]())):
        shutil.rmtree(reader.folder / "dist")
        for blob in prepared:
            lose(reader, blob.name)
        assert compiled(reader.build(*options)) == again
        assert reader.files() == made


def test_a_check_of_numbers_fetches_the_prepared_model(tmp_path: Path) -> None:
    writer, reader = (machine(tmp_path / name, '{layout: directory, path: "dist/${group}"}') for name in ("writer", "reader"))
    writer.build("--remote-cache", "write")
    reader.edit("  right: right.onnx\n", "    verify: true\n  right: right.onnx\n")
    assert compiled(reader.build()) == {"verify:left/npu"}


def test_an_image_with_a_prepared_model_is_pushed_from_a_remote_cache(tmp_path: Path) -> None:
    with serving(Registry) as registry:
        push = f"registry: '127.0.0.1:{registry.port}/quick/${{group}}:1'"
        image = f'{{layout: directory, path: "images/${{group}}", archive: oci, {push}, include_source: "base/${{model}}.onnx"}}'
        writer, reader = (machine(tmp_path / name, image) for name in ("writer", "reader"))
        writer.build("--remote-cache", "write")
        made = dict(registry.blobs)
        registry.manifests.clear()
        registry.blobs.clear()
        assert compiled(reader.build("--push-only")) == set()
        assert registry.blobs == made
        assert any(b"left.data" in blob for blob in made.values())
    assert not (reader.folder / "images").exists()


def _is_prepared(blob: Path) -> bool:
    return hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name and b"left.data" in blob.read_bytes()
