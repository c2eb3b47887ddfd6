"""Every field of a recipe, changed one at a time: incremental builds equal builds from scratch.

The fields come from the recipe's schema, so that a new field fails here until it has a case. The fake EP writes a
digest of its whole request and of all its readable files. Therefore a field that is missing in an action key shows in
the outputs.
"""

from __future__ import annotations

import copy
import hashlib
import io
import itertools
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.catalog.catalog import entry
from epbuild.catalog.facts import METRICS
from epbuild.commands.plan import survey
from epbuild.compile import executor
from epbuild.core.canonical import read_schema
from epbuild.publish.registry.client import Pushed
from epbuild.recipe.model import ToolchainSpec
from epbuild.recipe.outputs import ARCHIVE_FORMS, LAYOUT_FORMS
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import Workshop, context_model
from tests.support.gate import sampled

pytestmark = pytest.mark.slow

Document = dict[str, Any]
Edits = Mapping[str, Any]
"""New values by their places in a recipe, with dots between names and numbers. None removes a value."""

QNN = {"ep": "QNNExecutionProvider", "provider_options": {"backend_type": "htp", "soc_model": "SM8750"}}
OPENVINO = "OpenVINOExecutionProvider"
ARCHIVES: Mapping[str, str] = {"folder": "", **{name: f".{name}" if form.is_file else "" for name, form in ARCHIVE_FORMS.items()}}
"""Suffixes of outputs, by archive format."""
PACKAGE = "ort-model-package"
PAIRS = list(itertools.product(LAYOUT_FORMS, ARCHIVES))
SAMPLE = list(zip(itertools.cycle(LAYOUT_FORMS), ARCHIVES, strict=False))
"""Each layout and each archive format at least once."""
TOLD = {"provenance": True, "sbom": True}
PLAIN = "plain"
"""Folder of the outputs that do not describe the recipe's files, and so change only with the built files."""


def base_recipe() -> Document:
    return {
        "epbuild": 1,
        "name": "fields",
        "description": "What it is for.",
        "vars": {"quality": 1},
        # No package is installed here. The last package lets a target change only its EP.
        "toolchains": {"qnn": {"packages": ["onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0", "onnxruntime-ep-openvino==1.8.1"]}},
        "models": {"left": "left.onnx", "right": {"path": "right.onnx"}},
        "targets": {"npu": {"toolchain": "qnn", **copy.deepcopy(QNN)}},
        "groups": {"pair": {"models": ["left", "right"], "targets": ["npu"], "expect": {"fallback_nodes": "any"}}},
        "outputs": [
            *(output(PLAIN, *pair) for pair in PAIRS),
            *(output("told", *pair, include_source="base/${model}.onnx", **TOLD) for pair in SAMPLE),
        ],
    }


def output(folder: str, layout: str, archive: str, /, **more: Any) -> Document:
    packed = {} if archive == "folder" else {"archive": archive}
    return {"layout": layout, "path": f"dist/{folder}/{layout}-{archive}{ARCHIVES[archive]}", **packed, **more}


OUTPUTS = range(len(base_recipe()["outputs"]))
PACKAGES = [number for number in OUTPUTS if base_recipe()["outputs"][number]["layout"] == PACKAGE]
IMAGES = [number for number in OUTPUTS if base_recipe()["outputs"][number].get("archive") == "oci"]
ZIPPED = [number for number in OUTPUTS if base_recipe()["outputs"][number].get("archive") == "zip"]
FEW = (*(PAIRS.index(pair) for pair in SAMPLE[:2]), *range(len(PAIRS) + 2, len(OUTPUTS)))
"""Indices of outputs with the pairs of `SAMPLE`: the first two without provenance, the others with provenance."""
SQUEEZED = [number for number in OUTPUTS if base_recipe()["outputs"][number].get("archive") == "tar.zst"]


def in_each_output(name: str, value: Any, numbers: Any = OUTPUTS) -> Edits:
    """Return an edit of one field in each of the outputs."""
    return {f"outputs.{number}.{name}": value for number in numbers}


@dataclass(frozen=True)
class Case:
    """Change of a recipe that is built. `given` are edits that give the field a meaning."""

    change: Edits
    given: Edits = field(default_factory=dict)
    counts: bool = True
    """True if outputs that do not describe the recipe's files change too."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the user that change too."""


EPS: Edits = {"targets.npu.ep": None, "targets.npu.provider_options": None, "targets.npu.eps": [copy.deepcopy(QNN)]}
INTEL_TOOLCHAIN: Edits = {"toolchains.intel": {"packages": ["onnxruntime==1.31.1", "onnxruntime-ep-openvino==1.8.1"]}}
INTEL_NPU: Document = {"ep": OPENVINO, "device": {"type": "npu", "virtual": True, "metadata": {"npu_platform": "4000"}}}
INTEL: Edits = {**INTEL_TOOLCHAIN, "targets.npu": {"toolchain": "intel", **INTEL_NPU}}
INTEL_EPS: Edits = {**INTEL_TOOLCHAIN, "targets.npu": {"toolchain": "intel", "eps": [INTEL_NPU]}}
SHARING: Edits = {"groups.pair.share_weights": True}
MATRIX: Edits = {
    "targets.npu.matrix": {"soc": ["SM8750"]},
    "targets.npu.provider_options.soc_model": "${matrix.soc}",
    "groups.pair.targets": ["npu-*"],
    "outputs": [{"layout": "directory", "path": "dist/plain/${target}"}],
}
SHORT: Edits = {"targets.npu": {"toolchain": "qnn", "ep": "qnn", "soc": "SM8750"}}
SHORT_INTEL: Edits = {"targets.npu": {"toolchain": "qnn", "ep": "openvino", "device": "CPU"}}
PER_TARGET: Edits = {"groups.pair.targets": ["npu"], "outputs": [{"layout": "directory", "path": "dist/plain/${target}"}]}
TWO: Edits = {
    "groups.other": {"models": ["left"], "targets": ["npu"], "expect": {"fallback_nodes": "any"}},
    "targets.gpu": {"toolchain": "qnn", "ep": OPENVINO, "device": {"type": "gpu"}},
    "groups.pair.targets": ["npu", "gpu"],
    "outputs": [{"layout": "directory", "path": "dist/plain/${group}/${target}", "groups": ["pair", "other"], "targets": ["*"]}],
}
UNGROUPED: Edits = {
    # An implicit group expects that the EP takes all nodes, unless the target ends with the CPU EP.
    "targets.npu": {"toolchain": "qnn", "eps": [copy.deepcopy(QNN), {"ep": "cpu"}]},
    "groups.default": "none",
    "groups.pair.models": ["left"],
    "outputs": [{"layout": "directory", "path": "dist/plain/${group}"}],
}
MERGING: Edits = {
    "groups.pair.merge": {"name": "llm", "connect": {"left.logits": "right.input_ids"}, "prefixes": {"right": "r_"}},
    **in_each_output("include_source", None),
}
ENCRYPTED: Edits = {
    "groups.pair.compile.embed": True,
    "outputs": [output(PLAIN, "directory", "folder", encrypt={"key_variable": "CONTEXT_KEY"})],
}
PRINT_KEY = [sys.executable, "-c", "print('5a' * 32)"]
GENAI: Edits = {
    "groups.pair.genai": {"config": "genai.json", "roles": {"prefill": "left", "decode": "right"}, "files": ["tokenizer.json"]},
    **in_each_output("include_source", "${model}.base.onnx"),
}
ELSEWHERE: Edits = {"models.right": {"path": "external.onnx", "external_data": "one"}}
TOOLS: Edits = {"toolchains.tools": {"packages": ["onnx==1.19.1"]}}
PREPARED: Edits = {
    **TOOLS,
    "models.right": {
        "path": "right.onnx",
        "prepare": [{"run": ["python", "fold.py", "${in}", "${out}"], "files": ["fold.py"], "toolchain": "tools"}],
    },
}
MADE: Edits = {
    **TOOLS,
    "models.right": {"make": {"run": ["python", "fold.py", "${out}"], "files": ["fold.py"], "toolchain": "tools"}},
}
SPLIT: Edits = {"models.right": {"path": "right.onnx", "split": {"parts": 2}}}
SPLIT_AT: Edits = {"models.right": {"path": "right.onnx", "split": {"at": ["x"]}}}
OPSET: Edits = {**TOOLS, "models.right": {"path": "right.onnx", "prepare": [{"opset": 20, "toolchain": "tools"}]}}
PLAIN_LIST: Edits = {"groups.pair.models": ["left", "right"]}
LISTED: Edits = {"groups.pair.models": [{"model": "left"}, {"model": "right"}]}
LIMITED: Document = {"fallback_nodes": "any", "max_bytes": "1 GB", "max_growth": 1, "baseline": "release.json"}
EXTERNAL: Edits = {"groups.pair.compile": {"initializers": {"store": "external", "file": "${model}.w", "threshold": 64}}}


def sized(**sizes: Any) -> Document:
    """Return a model with an open dimension, and the settings of its size."""
    return {"path": "open.onnx", **sizes}


def model(seed: int, rows: int | str = 4) -> bytes:
    """Return a multiplication with random weights, from `input_ids` with a batch of rows to `logits`."""
    import numpy

    weights = numpy.random.default_rng(seed).standard_normal((8, 8)).astype(numpy.float32)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 8]) for name in ("input_ids", "logits")]
    values[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    node = helper.make_node("MatMul", ["input_ids", "w"], ["logits"], name="mm")
    graph = helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(weights, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString(deterministic=True))


def with_external_data() -> bytes:
    """Return the model with its weights in `w.bin`."""
    made = onnx.load_from_string(model(5))
    (tensor,) = made.graph.initializer
    onnx.external_data_helper.set_external_data(tensor, "w.bin")
    tensor.ClearField("raw_data")
    return bytes(made.SerializeToString(deterministic=True))


def genai(**more: int) -> bytes:
    return json.dumps({"model": {"context_length": 128, "vocab_size": 256, **more}}).encode()


def arrays(seed: int) -> bytes:
    """Return a file of inputs."""
    stream = io.BytesIO()
    np.savez(stream, input_ids=np.random.default_rng(seed).standard_normal(4).astype(np.float32))
    return stream.getvalue()


FILES = {
    "first.npz": arrays(1),
    "second.npz": arrays(2),
    "left.onnx": model(1),
    "right.onnx": model(2),
    "open.onnx": model(2, "n"),
    "other.onnx": model(3),
    "external.onnx": with_external_data(),
    "one/w.bin": bytes(256),
    "two/w.bin": bytes(range(256)),
    "genai.json": genai(),
    "genai2.json": genai(eos_token_id=3),
    "tokenizer.json": b"{}",
    "special.json": b"[]",
    "french.onnx_adapter": b"\x0c\0\0\0TORT an adapter",
    "plugin.so": b"a plugin",
    "plugin2.so": b"another plugin",
    "more.yaml": b"vars: {quality: 3}\n",
    "base.yaml": b"description: Another purpose.\n",
    "mine.toml": b"",
    "fold.py": b"print(1)",
    "release.json": b'{"format": 1, "steps": []}',
    "release-2.json": b'{"format": 1, "steps": [{"action": "compile:pair/npu/left", "size": 100000}]}',
}
DIGESTS = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}


CASES: dict[str, Case | str] = {
    "epbuild": "the language has one version",
    "extends": Case({"extends": "base.yaml", "description": None}, given={"description": "Another purpose."}, counts=False),
    "include[]": Case(
        {"include": ["more.yaml"], "vars": None}, given={"targets.npu.environment": {"QUALITY": "${vars.quality}"}}
    ),
    "name": Case({"name": "others"}),
    "description": Case({"description": "Another purpose."}),
    "vars.*": Case(
        {"vars.quality": 2}, given={"targets.npu.provider_options.htp_graph_finalization_optimization_mode": "${vars.quality}"}
    ),
    "toolchains.*.python": Case({"toolchains.qnn.python": "3.12"}),
    "toolchains.*.packages[]": Case({"toolchains.qnn.packages.1": "onnxruntime-qnn==2.6.0"}),
    "toolchains.*.interpreter": Case({"toolchains.qnn.interpreter": "plugin.so"}, counts=False),
    "toolchains.*.custom_ops[]": Case({"toolchains.qnn.custom_ops": ["plugin.so"]}),
    "toolchains.*.platforms[]": Case({"toolchains.qnn.platforms": ["linux-x86_64"]}, counts=False),
    "catalogs[]": "only EPs that epbuild does not know take one",
    "cache.remote": "where a result comes from changes nothing of it",
    "cache.trust[]": "where a result comes from changes nothing of it",
    "models": Case(
        {"models": "r*t.onnx", "groups.pair.models": ["right"]}, given={"models": "l*t.onnx", "groups.pair.models": ["left"]}
    ),
    "models[]": Case(
        {"models": ["left.onnx", "other.onnx"], "groups.pair.models": ["left", "other"]},
        given={"models": ["left.onnx", "right.onnx"]},
    ),
    "models.*": Case({"models.left": "other.onnx"}),
    "models.*.path": Case({"models.right.path": "other.onnx"}),
    "models.*.make.run[]": Case({"models.right.make.run": ["python", "fold.py", "${out}", 2]}, given=MADE),
    "models.*.make.toolchain": Case(
        {"models.right.make.toolchain": "next"}, given={**MADE, "toolchains.next": {"packages": ["onnx==1.19.0"]}}, counts=False
    ),
    "models.*.make.files[]": Case({"models.right.make.files": ["fold.py", "one/*"]}, given=MADE),
    "models.*.make.environment.*": Case({"models.right.make.environment": {"BITS": 8}}, given=MADE),
    "models.*.make.timeout": Case({"models.right.make.timeout": 60}, given=MADE, counts=False),
    "models.*.make.memory": Case({"models.right.make.memory": "1 GiB"}, given=MADE, counts=False),
    "models.*.from": Case(
        {"models.right.from": "other"},
        given={
            **TOOLS,
            "groups.default": "none",
            "models.other": "other.onnx",
            "models.right": {"from": "left", "prepare": [{"opset": 20, "toolchain": "tools"}]},
        },
    ),
    "models.*.sha256": Case({"models.right.sha256": DIGESTS["right.onnx"]}, counts=False),
    "models.*.data_sha256.*": Case({"models.right.data_sha256": {"w.bin": DIGESTS["one/w.bin"]}}, given=ELSEWHERE, counts=False),
    "models.*.external_data": Case({"models.right.external_data": "two"}, given=ELSEWHERE),
    "models.*.input_shapes.*[]": Case(
        {"models.right.input_shapes.input_ids.0": 2}, given={"models.right": sized(input_shapes={"input_ids": [4, 8]})}
    ),
    "models.*.dimensions.*": Case({"models.right.dimensions.n": 2}, given={"models.right": sized(dimensions={"n": 4})}),
    "models.*.split.parts": Case({"models.right.split.parts": 3}, given=SPLIT),
    "models.*.split.at[]": Case({"models.right.split.at": ["y"]}, given=SPLIT_AT),
    "models.*.split.at[][]": Case({"models.right.split.at": [["x", "y"]]}, given=SPLIT_AT),
    "models.*.split.layers[]": Case({"models.right.split": {"layers": [1]}}, given=SPLIT),
    "models.*.split.names[]": Case({"models.right.split.names": ["first", "second"]}, given=SPLIT),
    "models.*.prepare[].run[]": Case({"models.right.prepare.0.run": ["python", "fold.py", "${in}", "${out}", 2]}, given=PREPARED),
    "models.*.prepare[].opset": Case({"models.right.prepare.0.opset": 21}, given=OPSET),
    "models.*.prepare[].rewrite": "only one EP has patterns",
    "models.*.prepare[].toolchain": Case(
        {"models.right.prepare.0.toolchain": "next"},
        given={**PREPARED, "toolchains.next": {"packages": ["onnx==1.19.0"]}},
        counts=False,
    ),
    "models.*.prepare[].files[]": Case({"models.right.prepare.0.files": ["fold.py", "one/*"]}, given=PREPARED),
    "models.*.prepare[].environment.*": Case({"models.right.prepare.0.environment": {"BITS": 8}}, given=PREPARED),
    "models.*.prepare[].timeout": Case({"models.right.prepare.0.timeout": 60}, given=PREPARED, counts=False),
    "models.*.prepare[].memory": Case({"models.right.prepare.0.memory": "1 GiB"}, given=PREPARED, counts=False),
    "models.*.load_from": Case({"models.right.load_from": "memory"}),
    "targets.*.matrix.*[]": Case({"targets.npu.matrix.soc": ["SM8650"]}, given=MATRIX),
    "targets.*.matrix.include[].*": Case({"targets.npu.matrix.include": [{"soc": "SM8650"}]}, given=MATRIX),
    "targets.*.matrix.exclude[].*": Case(
        {"targets.npu.matrix.exclude": [{"soc": "SM8650"}]}, given={**MATRIX, "targets.npu.matrix": {"soc": ["SM8750", "SM8650"]}}
    ),
    "targets.*.toolchain": Case(
        {"targets.npu.toolchain": "next"}, given={"toolchains.next": {"packages": ["onnxruntime-qnn==2.7.1"]}}
    ),
    "targets.*.ep": Case({"targets.npu.ep": OPENVINO}, given={"targets.npu.provider_options": None}),
    "targets.*.soc": Case({"targets.npu.soc": "SM8650"}, given=SHORT),
    "targets.*.soc[]": Case(
        {"targets.npu.soc": ["SM8750", "SM8650"]}, given={**SHORT, **PER_TARGET, "targets.npu.soc": ["SM8750"]}
    ),
    "targets.*.device": Case({"targets.npu.device": "GPU"}, given=SHORT_INTEL),
    "targets.*.device[]": Case(
        {"targets.npu.device": ["CPU", "GPU"]}, given={**SHORT_INTEL, **PER_TARGET, "targets.npu.device": ["CPU"]}
    ),
    "targets.*.library": Case({"targets.npu.library": "plugin2.so"}, given={"targets.npu.library": "plugin.so"}),
    "targets.*.device.type": Case(
        {"targets.npu.device.type": "gpu"}, given={"targets.npu": {"toolchain": "qnn", "ep": OPENVINO}}
    ),
    "targets.*.device.vendor": Case({"targets.npu.device.vendor": "Qualcomm"}),
    "targets.*.device.metadata.*": Case({"targets.npu.device.metadata.npu_platform": "5010"}, given=INTEL),
    "targets.*.device.virtual": Case({"targets.npu.device.virtual": False}, given=INTEL),
    "targets.*.provider_options.*": Case({"targets.npu.provider_options.vtcm_mb": 8}),
    "targets.*.eps[].ep": Case({"targets.npu.eps.1": {"ep": "CPUExecutionProvider"}}, given=EPS),
    "targets.*.eps[].soc": Case(
        {"targets.npu.eps.0.soc": "SM8650"}, given={**EPS, "targets.npu.eps": [{"ep": "qnn", "soc": "SM8750"}]}
    ),
    "targets.*.eps[].soc[]": "it is refused there, since a target has one device for each EP",
    "targets.*.eps[].device": Case(
        {"targets.npu.eps.0.device": "GPU"}, given={**EPS, "targets.npu.eps": [{"ep": "openvino", "device": "CPU"}]}
    ),
    "targets.*.eps[].device[]": "it is refused there, since a target has one device for each EP",
    "targets.*.eps[].library": Case({"targets.npu.eps.0.library": "plugin.so"}, given=EPS),
    "targets.*.eps[].device.type": Case({"targets.npu.eps.0.device.type": "cpu"}, given=EPS),
    "targets.*.eps[].device.vendor": Case({"targets.npu.eps.0.device.vendor": "Qualcomm"}, given=EPS),
    "targets.*.eps[].device.metadata.*": Case({"targets.npu.eps.0.device.metadata.npu_platform": "5010"}, given=INTEL_EPS),
    "targets.*.eps[].device.virtual": Case({"targets.npu.eps.0.device.virtual": False}, given=INTEL_EPS),
    "targets.*.eps[].provider_options.*": Case({"targets.npu.eps.0.provider_options.vtcm_mb": 8}, given=EPS),
    "targets.*.run_options.*": Case({"targets.npu.run_options": {"qnn.htp_perf_mode": "burst"}}),
    "targets.*.session_options.*": Case({"targets.npu.session_options": {"session.disable_quant_qdq": True}}),
    "targets.*.environment.*": Case({"targets.npu.environment": {"QNN_TRACE": "1"}}),
    "targets.*.allow_unknown_options": Case({"targets.npu.allow_unknown_options": True}, counts=False),
    "targets.*.allow_unknown_session_keys": Case({"targets.npu.allow_unknown_session_keys": True}, counts=False),
    "targets.*.allow_nondeterminism": Case({"targets.npu.allow_nondeterminism": True}),
    "groups.*.allow_nondeterminism": Case({"groups.pair.allow_nondeterminism": True}),
    "groups.default": Case({"groups.default": None}, given=UNGROUPED),
    "groups.*.models[]": Case({"groups.pair.models": ["right", "left"]}),
    "groups.*.models[].model": Case({"groups.pair.models": [{"model": "right"}, {"model": "left"}]}, given=LISTED),
    "groups.*.models[].name": Case({"groups.pair.models.0.name": "first"}, given=LISTED),
    "groups.*.models[].input_shapes.*[]": Case(
        {"groups.pair.models.1.input_shapes.input_ids.0": 2},
        given={**LISTED, "models.right.path": "open.onnx", "groups.pair.models.1.input_shapes": {"input_ids": [4, 8]}},
    ),
    "groups.*.targets[]": Case({"groups.pair.targets": ["npu"]}, given=TWO),
    "groups.*.share_weights": Case(SHARING),
    "groups.*.share_weights[][]": Case({"groups.pair.share_weights": [["left", "right"]]}),
    "groups.*.compile": Case({"groups.pair.compile": "none"}),
    "groups.*.models[].compile": Case({"groups.pair.models.1.compile": "none"}, given=LISTED),
    "groups.*.models[].dimensions.*": Case(
        {"groups.pair.models.1.dimensions.n": 2},
        given={**LISTED, "models.right.path": "open.onnx", "groups.pair.models.1.dimensions": {"n": 4}},
    ),
    "groups.*.share_initializers": Case({"groups.pair.share_initializers": True}, given=SHARING),
    "groups.*.share_initializers.threshold": Case(
        {"groups.pair.share_initializers.threshold": 512}, given={**SHARING, "groups.pair.share_initializers": {"threshold": 64}}
    ),
    "groups.*.merge.name": Case({"groups.pair.merge.name": "both"}, given=MERGING),
    "groups.*.merge.connect.*": Case({"groups.pair.merge.connect": {}}, given=MERGING),
    "groups.*.merge.connect.*[]": Case(
        {"groups.pair.merge.connect": {"left.logits": ["right.input_ids"]}}, given=MERGING, counts=False
    ),
    "groups.*.merge.prefixes.*": Case({"groups.pair.merge.prefixes.right": "second_"}, given=MERGING),
    "groups.*.adapters[]": Case({"groups.pair.adapters": ["french.onnx_adapter"]}),
    "groups.*.genai.config": Case({"groups.pair.genai.config": "genai2.json"}, given=GENAI),
    **{
        f"groups.*.genai.roles.{role}": Case({"groups.pair.genai.roles": roles}, given=GENAI)
        for role, roles in {
            "embeddings": {"embeddings": "left", "both": "right"},
            "prefill": {"prefill": "right", "decode": "left"},
            "decode": {"decode": "left", "prefill": "right"},
            "both": {"both": "left", "lm_head": "right"},
            "lm_head": {"lm_head": "left", "both": "right"},
        }.items()
    },
    **{
        f"groups.*.genai.roles.{role}[]": Case({"groups.pair.genai.roles": roles}, given=GENAI)
        for role, roles in {
            "embeddings": {"embeddings": ["left"], "both": "right"},
            "prefill": {"prefill": ["right"], "decode": "left"},
            "decode": {"decode": ["left"], "prefill": "right"},
            "both": {"both": ["right", "left"]},
            "lm_head": {"lm_head": ["left"], "both": "right"},
        }.items()
    },
    "groups.*.genai.files[]": Case({"groups.pair.genai.files": ["special.json"]}, given=GENAI),
    "groups.*.timeout": Case({"groups.pair.timeout": 600}, counts=False),
    "groups.*.separate": Case(
        {"groups.pair.separate": True}, given={"outputs": [{"layout": "directory", "path": "dist/plain/${group}"}]}
    ),
    "groups.*.allow_failure": Case({"groups.pair.allow_failure": True}, counts=False),
    "groups.*.allow_failure[]": Case({"groups.pair.allow_failure": ["n*"]}, counts=False),
    "groups.*.memory": Case({"groups.pair.memory": "1 GiB"}, counts=False),
    **{
        f"groups.*.{place}{name}": Case(
            {f"groups.pair.{'models.1.' if place else ''}{name}": value},
            given=LISTED if place else {},
            counts=counts,
        )
        for place in ("", "models[].")
        for name, value, counts in (
            ("compile.embed", True, True),
            ("compile.graph_optimization_level", "all", True),
            ("compile.node_name_prefix", "n_", True),
            ("expect.ep_context_nodes", 1, False),
            ("expect.fallback_nodes", 1, False),
            ("expect.max_bytes", "1 GB", False),
        )
    },
    **{
        f"groups.*.{place}expect.{name}": Case(
            {f"{there}.expect.{name}": value}, given={**given, f"{there}.expect": dict(LIMITED)}, counts=False
        )
        for place, there, given in (("", "groups.pair", {}), ("models[].", "groups.pair.models.1", LISTED))
        for name, value in (("max_growth", 2), ("baseline", "release-2.json"))
    },
    **{
        f"groups.*.{place}compile.initializers.{name}{items}": Case({f"{there}.compile.initializers.{name}": value}, given=given)
        for place, there, given in (
            ("", "groups.pair", EXTERNAL),
            ("models[].", "groups.pair.models.1", {**LISTED, "groups.pair.models.1.compile": EXTERNAL["groups.pair.compile"]}),
        )
        for name, items, value in (("file", "", "${model}.weights"), ("threshold", "", 128), ("names", "[]", ["w*"]))
    },
    "groups.*.compile.initializers.store": Case({"groups.pair.compile": {"initializers": {"store": "source"}}}),
    "groups.*.models[].compile.initializers.store": Case(
        {"groups.pair.models.1": {"model": "right", "compile": {"initializers": {"store": "source"}}}}, given=LISTED
    ),
    "groups.*.models[].expect.shared_bytes.min_ratio": "it is refused there, since it is the group's",
    "groups.*.models[].expect.shared_bytes.measure": "it is refused there, since it is the group's",
    "groups.*.expect.shared_bytes.measure": "it has one value",
    "groups.*.expect.shared_bytes.min_ratio": Case(
        {"groups.pair.expect": {"fallback_nodes": "any", "shared_bytes": {"min_ratio": 0.01, "measure": "alone"}}},
        given=SHARING,
        counts=False,
    ),
    "outputs[].layout": Case({"outputs.0.layout": PACKAGE}),
    "outputs[].path": Case({"outputs.0.path": "dist/plain/elsewhere"}),
    "outputs[].groups[]": Case({"outputs.0.groups": ["pair"]}, given=TWO),
    "outputs[].targets[]": Case({"outputs.0.targets": ["gpu"]}, given=TWO),
    "outputs[].model": Case(in_each_output("model", "${model}.onnx")),
    "outputs[].context_binary": Case(in_each_output("context_binary", "${model}.bin")),
    "outputs[].include_source": Case(in_each_output("include_source", "before/${model}.onnx")),
    "outputs[].component_name": Case(in_each_output("component_name", "${group}-${model}", PACKAGES)),
    "outputs[].archive": Case({"outputs.1.path": "dist/plain/other.tar.zst", "outputs.1.archive": "tar.zst"}),
    "outputs[].archive.format": Case(
        {"outputs.1.path": "dist/plain/other.tar.zst", "outputs.1.archive": {"format": "tar.zst"}},
        given={"outputs.1.archive": {"format": "zip"}},
    ),
    "outputs[].archive.level": Case(
        {
            **in_each_output("archive", {"format": "oci", "level": 9}, IMAGES),
            **in_each_output("archive", {"format": "zip", "level": 9}, ZIPPED),
            **in_each_output("archive", {"format": "tar.zst", "level": 9}, SQUEEZED),
        },
        given=in_each_output("archive", {"format": "oci", "level": 1}, IMAGES),
    ),
    "outputs[].registry": Case(
        in_each_output("registry", "localhost:1/fields:second", IMAGES[:1]),
        given=in_each_output("registry", "localhost:1/fields:first", IMAGES[:1]),
    ),
    "outputs[].provenance": Case(in_each_output("provenance", True)),
    "outputs[].sbom": Case(in_each_output("sbom", True)),
    "outputs[].encrypt.key_variable": Case({"outputs.0.encrypt.key_variable": "SAME_KEY"}, given=ENCRYPTED, counts=False),
    "outputs[].encrypt.key_command[]": Case({"outputs.0.encrypt": {"key_command": PRINT_KEY}}, given=ENCRYPTED, counts=False),
    "outputs[].encrypt.key_id": Case({"outputs.0.encrypt.key_id": "second"}, given=ENCRYPTED),
}
VERIFIED = {"models.*": "models.right", "groups.*": "groups.pair", "groups.*.models[]": "groups.pair.models.1"}
"""Places of numeric checks in the recipe, by their places in the schema."""
METRIC: Document = {"metric": {"run": ["python", "fold.py", "${in}", "${out}"], "files": ["fold.py"]}}
RUN_BY_COMMAND: Document = {"command": {"run": ["python", "fold.py", "${in}", "${out}"], "files": ["fold.py"]}}
RANGES: Document = {"data": {"seed": 1, "ranges": {"input_ids": [0, 1]}}}
CASES |= {
    f"{place}.verify{name}": Case(
        {f"{there}.verify{change}": value},
        given={**LISTED, "models.right": {"path": "right.onnx"}, f"{there}.verify": given} if given else LISTED,
        counts=counts,
    )
    for place, there in VERIFIED.items()
    for name, change, value, given, counts in (
        ("", "", True, None, True),
        (".data", ".data", "first.npz", {"data": "second.npz"}, True),
        (".data[]", ".data", ["first.npz", "sec*.npz"], {"data": ["first.npz"]}, True),
        (".data.seed", ".data.seed", 3, RANGES, True),
        (".data.samples", ".data.samples", 2, RANGES, True),
        (".data.ranges.*[]", ".data.ranges.input_ids.1", 5, RANGES, True),
        *((f".metrics.{metric}", f".metrics.{metric}", 0.5, {"metrics": {"max_abs": 9}}, False) for metric in METRICS),
        (".reference", ".reference", "prepared", RANGES, False),
        (".unjudged", ".unjudged", "emit", RANGES, False),
        (".device", ".device", "real", RANGES, True),
        (".metric.run[]", ".metric.run", ["python", "fold.py", "${in}", "${out}", 2], METRIC, True),
        (".metric.files[]", ".metric.files", ["fold.py", "first.npz"], METRIC, True),
        (".metric.min.*", ".metric.min", {"accuracy": 0.5}, METRIC, False),
        (".command.run[]", ".command.run", ["python", "fold.py", "${in}", "${out}", 2], RUN_BY_COMMAND, True),
        (".command.files[]", ".command.files", ["fold.py", "first.npz"], RUN_BY_COMMAND, True),
    )
}
CASES |= {
    f"{place}.verify.metric.{limit}.*": "it is read and judged as `min` is"
    for place in VERIFIED
    for limit in ("max", "max_drop", "max_rise")
}
CHECKED = list(dict.fromkeys(name.partition(".verify.")[2] for name in CASES if ".verify." in name))
"""Fields of a numeric check."""
MEASURED = {"targets.*": "targets.npu", "groups.*": "groups.pair"}
"""Places of measurements in the recipe, by their places in the schema."""
MEASURING: Document = {"command": ["python", "fold.py", "${in}", "${out}"], "files": ["fold.py"], "on": "cpu"}
CASES |= {
    f"{place}.measure.{name}": Case({f"{there}.measure.{change}": value}, given={f"{there}.measure": MEASURING}, counts=counts)
    for place, there in MEASURED.items()
    for name, change, value, counts in (
        ("command[]", "command", ["python", "fold.py", "${in}", "${out}", "-v"], True),
        ("files[]", "files", ["fold.py", "first.npz"], True),
        ("environment.*", "environment", {"A": "b"}, True),
        ("timeout", "timeout", 9, False),
        ("on", "on", "emulator", False),
    )
}
CASES |= {
    f"{place}.measure.{name}": Case({f"{there}.measure.{name}": value}, given={f"{there}.measure": {"runs": 2}}, counts=counts)
    for place, there in MEASURED.items()
    for name, value, counts in (("runs", 3, True), ("profile", True, False))
}
CASES |= {
    f"groups.*.{place}expect.{name}": Case(
        {f"{there}.expect.{name}": value}, given={**given, "groups.pair.measure": MEASURING}, counts=False
    )
    for place, there, given in (("", "groups.pair", PLAIN_LIST), ("models[].", "groups.pair.models.1", LISTED))
    for name, value in (
        ("load_ms", 2000),
        ("latency_ms", 2000),
        *((f"latency_ms.{part}", 2000) for part in ("first", "p50", "p95")),
        ("peak_memory", "1 GB"),
    )
}
CASES |= {
    f"groups.*.{place}expect.max_growth.{name}": "it is read and judged as `max_growth` is: see tests/session/test_size_limits.py"
    for place in ("", "models[].")
    for name in ("bytes", "load_ms", "latency_ms", *(f"latency_ms.{part}" for part in ("first", "p50", "p95")), "peak_memory")
}
OF_FILES = {
    "inputs of metrics": Case({}, given={"groups.pair.verify": {"data": "first.npz"}}, files={"first.npz": arrays(7)}),
    "a source model": Case({}, files={"left.onnx": model(4)}),
    "a preparation file": Case({}, given=PREPARED, files={"fold.py": b"print(2)"}),
    "a plugin": Case({}, given={"targets.npu.library": "plugin.so"}, files={"plugin.so": b"a newer plugin"}),
    "a custom operator library": Case(
        {}, given={"toolchains.qnn.custom_ops": ["plugin.so", "acme_ops"]}, files={"plugin.so": b"a newer library"}
    ),
    "a baseline": Case(
        {}, given={"groups.pair.expect": LIMITED}, counts=False, files={"release.json": b'{"format": 1, "steps": [] }'}
    ),
    "a file of a measurement": Case({}, given={"groups.pair.measure": MEASURING}, files={"fold.py": b"print(3)"}),
    "a genai configuration": Case({}, given=GENAI, files={"genai.json": genai(eos_token_id=5)}),
    "an asset": Case({}, given=GENAI, files={"tokenizer.json": b'{"a": 1}'}),
    "an included file": Case(
        {},
        given={"include": ["more.yaml"], "vars": None, "targets.npu.environment": {"QUALITY": "${vars.quality}"}},
        files={"more.yaml": b"vars: {quality: 4}\n"},
    ),
}


def fields_of(node: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yield the places in a recipe where the schema allows a single value."""
    document = read_schema("recipe")
    while "$ref" in node:
        node = document["$defs"][node["$ref"].removeprefix("#/$defs/")]
    kinds = node.get("type", [])
    if {"string", "number", "integer", "boolean"} & {*([kinds] if isinstance(kinds, str) else kinds)} or {
        "enum",
        "const",
    } & node.keys():
        yield place
    for name, child in node.get("properties", {}).items():
        yield from fields_of(child, f"{place}.{name}" if place else name)
    if isinstance(node.get("additionalProperties"), dict):
        yield from fields_of(node["additionalProperties"], f"{place}.*")
    if isinstance(node.get("items"), dict):
        yield from fields_of(node["items"], f"{place}[]")


def test_every_schema_field_has_a_case() -> None:
    assert sorted(CASES) == sorted(set(fields_of(read_schema("recipe"))))


class Checkout(Workshop):
    """A folder with the recipe, its files, and a store."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, folder.with_name(f"{folder.name}-cache"), monkeypatch)
        for path in folder.iterdir():
            path.unlink()
        self.write_files(FILES)
        monkeypatch.setenv("CONTEXT_KEY", "5a" * 32)
        monkeypatch.setenv("SAME_KEY", "5a" * 32)
        # The EPs are fake, so that this machine can compile for all of them. The catalog does not know that.
        monkeypatch.setattr(sys, "platform", "any")
        monkeypatch.setattr(
            "epbuild.publish.registry.client.push",
            lambda image, reference, *rest, **options: Pushed(reference, image.digest, 1, 0, 0),
        )

    def copy(self, other: Checkout) -> None:
        """Replace this checkout by a copy of another one."""
        for mine, others in ((self.folder, other.folder), (self.cache, other.cache)):
            shutil.rmtree(mine, ignore_errors=True)
            shutil.copytree(others, mine)

    def write_files(self, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_bytes(data)

    def made(self, recipe: Document) -> dict[str, bytes]:
        """Build, and return the files in `dist`."""
        (self.folder / "epbuild.yaml").write_text(json.dumps(recipe), encoding="utf-8")
        assert self.build().exit_code == 0, self.events
        dist = self.folder / "dist"
        return {path.relative_to(dist).as_posix(): path.read_bytes() for path in sorted(dist.rglob("*")) if path.is_file()}

    def prepared(self, request: Document, folder: Path, log: Path, environment: Mapping[str, str]) -> Ending:
        """Prepare a model that depends on the whole request and on all readable files."""
        files = [path.read_bytes() for part in ("in", "files") for path in sorted((folder / part).rglob("*")) if path.is_file()]
        told = hashlib.sha256(b"".join(files) + json.dumps([request, dict(environment)], sort_keys=True).encode())
        (folder / request.get("output", "out/right.onnx")).write_bytes(model(int(told.hexdigest()[:8], 16)))
        log.write_text("prepared\n", encoding="utf-8")
        return Ending("exited", 0, ({"event": "finished", "peak_memory": None},), ())

    def measured(self, request: Document, folder: Path, log: Path, environment: Mapping[str, str]) -> Ending:
        """Write figures that depend on the whole request and on all readable files."""
        files = [path.read_bytes() for part in ("in", "files") for path in sorted((folder / part).rglob("*")) if path.is_file()]
        told = hashlib.sha256(b"".join(files) + json.dumps([request["command"][1:], dict(environment)], sort_keys=True).encode())
        number = int(told.hexdigest()[:6], 16) / 1e5
        figures = {"load_ms": number, "latency_ms": dict.fromkeys(("first", "p50", "p95"), number), "peak_memory": 1, "on": "cpu"}
        (folder / "out" / "figures.json").write_text(json.dumps(figures), encoding="utf-8")
        log.write_text("measured\n", encoding="utf-8")
        return Ending("exited", 0, ({"event": "finished", "peak_memory": None},), ())

    def scored(self, request: Document, folder: Path, log: Path) -> Ending:
        """Write a constant metric, and one that depends on the whole request and on all readable files."""
        files = [path.read_bytes() for part in ("in", "files") for path in sorted((folder / part).rglob("*")) if path.is_file()]
        told = hashlib.sha256(b"".join(files) + json.dumps(request["command"][1:]).encode())
        metrics = {"accuracy": 0.5, "other": int(told.hexdigest()[:6], 16)}
        (folder / "out" / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
        log.write_text("scored\n", encoding="utf-8")
        return Ending("exited", 0, ({"event": "finished", "peak_memory": None},), ())

    def ran(self, request: Document, folder: Path, log: Path) -> Ending:
        """Write outputs that depend on the whole request and on all readable files."""
        files = [path.read_bytes() for part in ("in", "files") for path in sorted((folder / part).rglob("*")) if path.is_file()]
        told = hashlib.sha256(b"".join(files) + json.dumps(request["command"][1:]).encode())
        for path in (folder / "in" / "inputs").iterdir():
            with np.load(path) as given:
                np.savez(folder / "out" / path.name, logits=given["input_ids"] * np.float32(1 + told.digest()[0] / 1e5))
        (folder / "out" / "device.txt").write_text(told.hexdigest(), encoding="utf-8")
        log.write_text("ran\n", encoding="utf-8")
        return Ending("exited", 0, ({"event": "finished", "peak_memory": None},), ())

    def prepare(self, toolchain: ToolchainSpec, locked: object) -> Environment:
        packages = dict(package.split("==") for package in toolchain.packages)
        version = toolchain.python or "3.11"
        prints = Fingerprint(f"cpython-{version}", "linux-x86_64", {"onnxruntime": "1.31.1", **packages}, {})
        memory = self.folder / "fingerprint.json"
        return Environment(toolchain.name, Path(sys.executable), prints, memory, run_worker=self.run_worker)

    def runner(self, request: Document, log: Path) -> Ending:
        """Run models as an EP that multiplies its input by 0.999, or as the exact CPU EP."""
        reports = []
        for loaded in request["models"]:
            for number, inputs in enumerate(loaded["inputs"]):
                with np.load(inputs["file"]) as given:
                    np.savez(inputs["outputs"], given["arr_0"] * (0.999 if request["eps"] else 1.0))
                reports.append(
                    {
                        "event": "ran",
                        "model": loaded["name"],
                        "run": number,
                        "outputs": ["logits"],
                        "seconds": len(loaded["inputs"]),
                    }
                )
        reports += [{"event": "opened", "model": loaded["name"], "seconds": 0.5} for loaded in request["models"]]
        log.write_text("ran\n", encoding="utf-8")
        return Ending("exited", 0, (*reports, {"event": "finished", "peak_memory": None}), ())

    def worker(self, command: object, folder: Path, log: Path, **options: Any) -> Ending:
        """Compile as an EP whose output lists its request and all readable files."""
        request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        if "models" in request:
            return self.runner(request, log)
        if any(word.startswith("out/figures") for word in request.get("command", ())):
            return self.measured(request, folder, log, options["environment"])
        if "out/metrics.json" in request.get("command", ()):
            return self.scored(request, folder, log)
        if "out" in request.get("command", ()):
            return self.ran(request, folder, log)
        if "members" not in request:
            return self.prepared(request, folder, log, options["environment"])
        for item in (*request["here"]["eps"], *request["here"]["custom_ops"]):
            if item["library"] is not None:
                item["library"] = hashlib.sha256(Path(item["library"]).read_bytes()).hexdigest()
        sources = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted((folder / "in").rglob("*"))
            if path.is_file()
        }
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in sources.items()}
        own = {name: value for name, value in options["environment"].items() if name not in executor.ALLOCATION}
        content = json.dumps([request, digests, own], sort_keys=True).encode()
        members = request["members"]
        for member in members:
            first = members[0] if request["share_weights"] else member
            compiles = [ep["name"] for ep in request["eps"] if entry(ep["name"]).sources]
            contexts: dict[str, str | bytes] = {
                ep: content if member["compile"]["embed"] else f"{Path(first['output']).stem}_{entry(ep).short}.bin"
                for ep in compiles
            }
            onnx.save(context_model(contexts, "input_ids", "logits"), folder / member["output"])
            for ep, binary in contexts.items():
                if isinstance(binary, str):
                    soc = request["eps"][0]["options"].get("soc_model", "")
                    (folder / "out" / binary).write_bytes(f"by {ep} for {soc}: ".encode() + content)
        log.write_text("compiled\n", encoding="utf-8")
        reports = [{"event": "member_finished", "member": member["name"], "seconds": 0.1} for member in members]
        return Ending("exited", 0, (*reports, {"event": "finished", "peak_memory": None}), ())


def edited(recipe: Document, edits: Edits) -> Document:
    document = copy.deepcopy(recipe)
    for place, value in edits.items():
        *above, last = place.split(".") if not place.startswith("include") else [place]
        node: Any = document
        for name in above:
            node = node[int(name)] if isinstance(node, list) else node.setdefault(name, {})
        if isinstance(node, list):
            node[int(last) :] = [copy.deepcopy(value), *node[int(last) + 1 :]]
        elif value is None:
            node.pop(last, None)
        else:
            node[last] = copy.deepcopy(value)
    return document


def before_and_after(case: Case, *, every_output: bool = False) -> tuple[Document, Document]:
    """Return the recipes of a case. A change outside the outputs needs a sample of them."""
    before = edited(base_recipe(), case.given)
    after = edited(before, case.change)
    if not every_output and not any(place.startswith("outputs") for place in case.change):
        for recipe in (before, after):
            recipe["outputs"] = [recipe["outputs"][number] for number in FEW if number < len(recipe["outputs"])]
    return before, after


Built = tuple[Checkout, dict[str, bytes]]


@pytest.fixture(scope="module")
def built() -> dict[str, Built]:
    """Return built checkouts by their `given` edits. Each is built once, and copied."""
    return {}


def runs_by_default(name: str) -> bool:
    """Return whether a case runs without `-m exhaustive`.

    The same code reads and compares numeric checks and measurements of all places. Therefore each of their fields runs at one place
    only.
    """
    if ".models[].expect.l" in name or name.startswith("targets.*.measure."):
        return False
    place, _, checked = name.partition(".verify.")
    return not checked or CHECKED.index(checked) % len(VERIFIED) == [*VERIFIED].index(place)


def cases() -> Iterator[Any]:
    for name in (*(name for name, case in CASES.items() if isinstance(case, Case)), *OF_FILES):
        yield pytest.param(name, marks=() if runs_by_default(name) else pytest.mark.exhaustive)


@pytest.mark.parametrize("name", list(sampled(cases(), 6)))
def test_incremental_build_after_a_change_equals_a_clean_build(
    name: str,
    built: dict[str, Built],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    exhaustive: bool,
) -> None:
    case = {**CASES, **OF_FILES}[name]
    assert isinstance(case, Case)
    before, after = before_and_after(case, every_output=exhaustive)
    given = json.dumps(before)
    if given not in built:
        first = Checkout(tmp_path_factory.mktemp("given") / "checkout", monkeypatch)
        built[given] = first, first.made(before)
    other, old = built[given]
    checkout = Checkout(tmp_path / "checkout", monkeypatch)
    checkout.copy(other)
    checkout.write_files(case.files)
    new = checkout.made(after)
    assert survey(checkout.request).up_to_date
    fresh = Checkout(tmp_path / "fresh", monkeypatch)
    fresh.write_files(case.files)
    scratch = fresh.made(after)
    assert sorted(new) == sorted(scratch)
    assert [path for path in new if new[path] != scratch[path]] == []
    plain = [{path: data for path, data in tree.items() if path.startswith(PLAIN)} for tree in (old, new)]
    assert (plain[0] != plain[1]) == case.counts
