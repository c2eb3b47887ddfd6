"""Inputs of an emission of the quickstart: planned and keyed by the real functions, with fake EP files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from epbuild.archive.artifact import FileEntry
from epbuild.core.digest import Blob
from epbuild.onnxfile.read.headers import read_header
from epbuild.output.manifest import ManifestModel
from epbuild.output.materials import RecipeFiles, describe_recipe_file
from epbuild.plan.key import compute_action_key
from epbuild.plan.made import Made
from epbuild.plan.planner import make_plan
from epbuild.plan.request import compile_document
from epbuild.plan.result import CompileResult, Measurements
from epbuild.plan.steps import SessionGroup
from epbuild.recipe.load import load
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.verify.signature import get_signature

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
DECODER = "share:decoder/snapdragon-SM8750"
CLASSIFIER = "compile:classifier/snapdragon-SM8750/classifier"
CPU = "GenuineIntel family 6 model 85"
LIBRARY = "onnxruntime_qnn/libonnxruntime_providers_qnn.so"

MODULES = ("onnxruntime", "onnxruntime_qnn")
FINGERPRINT = Fingerprint(
    python="cpython-3.11",
    platform="linux-x86_64",
    distributions={"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0", "numpy": "2.4.6"},
    libraries={LIBRARY: "62" * 32, "onnxruntime/capi/libonnxruntime.so.1.31.1": "fc" * 32},
)


@dataclass(frozen=True)
class Output:
    """Content of a package of the quickstart's decoder and classifier for one SoC."""

    recipe: RecipeFiles
    built: tuple[Made, ...]
    models: dict[str, tuple[ManifestModel, ...]]
    """Models by the action that created them."""
    contents: tuple[FileEntry, ...]


@cache
def quickstart() -> Output:
    groups = make_plan(load(RECIPE)).session_groups
    decoder, classifier = groups[DECODER], groups[CLASSIFIER]
    built = {group.id: _built(group) for group in (decoder, classifier)}
    models = {
        group.id: tuple(_listed(group, name, built[group.id].key, binary) for name in names)
        for group, names, binary in (
            (decoder, ("prefill", "decode"), "prefill_qnn.bin"),
            (classifier, ("classifier",), "bin/classifier_qnn.bin"),
        )
    }
    return Output(
        recipe=RecipeFiles("quickstart", (describe_recipe_file(RECIPE, RECIPE.parent, sha256(RECIPE)),)),
        built=tuple(built.values()),
        models=models,
        contents=(
            FileEntry("decoder/prefill_ctx.onnx", "model", 10, "01" * 32),
            FileEntry("decoder/decode_ctx.onnx", "model", 10, "02" * 32),
            FileEntry("decoder/prefill_qnn.bin", "context-binary", 10, "03" * 32),
            FileEntry("decoder/tokenizer.json", "asset", 10, "04" * 32),
            FileEntry("decoder/manifest.json", "manifest", 10, "05" * 32),
            FileEntry("classifier/classifier_ctx.onnx", "model", 10, "06" * 32),
            FileEntry("classifier/bin/classifier_qnn.bin", "context-binary", 10, "07" * 32),
        ),
    )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _built(group: SessionGroup) -> Made:
    digests = {path: sha256(path) for path in group.files}
    document = compile_document(group, digests, FINGERPRINT.document(MODULES, {"cpu": CPU}))
    result = CompileResult({}, Blob("ab" * 32, 0), Measurements(0.0, {}, None), ())
    return Made(group, compute_action_key(document), document, result)


def with_source(built: Made, path: str) -> Made:
    """Return a session group whose models have this `path` in the recipe."""
    members = tuple(replace(member, model=replace(member.model, path=path)) for member in built.group.members)
    return replace(built, action=replace(built.group, members=members))


def _listed(group: SessionGroup, name: str, key: str, binary: str) -> ManifestModel:
    member = next(member for member in group.members if member.name == name)
    external = {location: sha256(path) for location, path in member.external.items()}
    source: dict[str, Any] = {
        "sha256": sha256(member.graph),
        "external_data": external,
        **msgspec.to_builtins(get_signature(read_header(member.graph))),
    }
    return ManifestModel(
        name=name,
        file=f"{name}_ctx.onnx",
        action_key=key,
        source=source,
        nodes=[{"name": "node", "source": "QNNExecutionProvider", "main_context": 1, "embed_mode": 0, "reference": binary}],
        fallback_nodes=0,
        compatibility={"QNNExecutionProvider": "v2:6:2.51.0"},
    )
