"""EPContext models as an EP writes them into a folder, and ways to damage them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

from epbuild.archive.artifact import FileEntry, Role
from epbuild.output.manifest import ManifestModel, PartManifest

QNN = "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
TARGET_PATTERN = "soc_type=([A-Za-z0-9_]+);arch=([0-9]+)"
BINARY = b"\0\1\2 soc_type=SC8380XP;arch=73 \3\4"
GRAPHS = {"prefill": "QNNExecutionProvider_17_1_0", "decode": "QNNExecutionProvider_23_1_0"}
SHARED = BINARY + b"\0".join(graph.encode() for graph in GRAPHS.values()) + bytes(range(256))
"""A context binary that holds the graphs of both models of a sharing group."""
SIGNATURE = {
    kind: [{"name": name, "type": "float32", "shape": [4, None, "n"]}] for kind, name in (("inputs", "x"), ("outputs", "y"))
}
"""Inputs and outputs of the models that `save` writes."""


def context_node(reference: str | None = "llm.bin", **attributes: Any) -> Any:
    named = {} if reference is None else {"ep_cache_context": reference}
    known = {"name": "context", "main_context": 1, "embed_mode": 0, "source": QNN, **named, **attributes}
    return helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **known)


def relu() -> Any:
    return helper.make_node("Relu", ["x"], ["y"])


def save(
    path: Path,
    *nodes: Any,
    external: str | None = None,
    extent: tuple[int, int] | None = None,
    metadata: dict[str, str] | None = None,
) -> Path:
    """Write a model of these nodes.

    `external` names the file of its one weight. `extent` is the weight's offset and length in that file.
    """
    shape = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, None, "n"]) for name in ("x", "y")]
    weights = []
    if external is not None:
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        weight.external_data.add(key="location", value=external)
        for key, number in zip(("offset", "length"), extent or (), strict=False):
            weight.external_data.add(key=key, value=str(number))
        weights.append(weight)
    model = helper.make_model(helper.make_graph(list(nodes), "graph", shape[:1], shape[1:], weights))
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def emitted(folder: Path) -> Path:
    """Write a sharing group as epbuild emits it: two models, one context binary, and the manifest."""
    for name, graph in GRAPHS.items():
        save(
            folder / f"{name}_ctx.onnx",
            context_node(partition_name=graph),
            metadata={f"ep_compatibility_info.{QNN}": compatible("60")},
        )
    (folder / "llm.bin").write_bytes(SHARED)
    list_files(folder)
    return folder


def compatible(soc: str) -> str:
    """Return a compatibility string as the QNN EP writes it."""
    return f"v2:6:2.51.0:5.51.0:0:{soc}:0:0"


def list_files(
    folder: Path,
    *,
    share: bool = True,
    eps: Sequence[Mapping[str, Any]] = ({"ep": QNN, "provider_options": {"backend_type": "htp", "soc_model": "SC8380XP"}},),
    models: Sequence[str] = tuple(GRAPHS),
    source: Mapping[str, Any] | None = None,
    session_options: Mapping[str, str] | None = None,
    leave_out: Sequence[str] = (),
    left: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the manifest of a folder without the files of `leave_out`. Each model's source is `source`."""
    roles: Mapping[str, Role] = {".onnx": "model", ".bin": "context-binary"}
    listed = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in {"manifest.json", *leave_out})
    files = [
        FileEntry(
            path.relative_to(folder).as_posix(),
            roles.get(path.suffix, "external-data"),
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in listed
    ]
    content = PartManifest(
        recipe="tiny-llm",
        group="decoder",
        share_weights=share,
        target={
            "name": "npu",
            "eps": list(eps),
            "session_options": dict(session_options or {}),
            "environment": {},
            "unchecked_options": [],
        },
        toolchain={
            "python": "cpython-3.11",
            "platform": "linux-x86_64",
            "distributions": {"onnxruntime-ep-openvino": "1.8.1", "onnxruntime-qnn": "2.7.0"},
        },
        models=[
            ManifestModel(
                name=name,
                file=f"{name}_ctx.onnx",
                action_key="ab" * 32,
                source={"sha256": "cd" * 32, "external_data": {}, **(SIGNATURE if source is None else source)},
                nodes=[{"name": "context", "source": QNN, "main_context": 1, "embed_mode": 0}],
                fallback_nodes=len(left),
                compatibility={},
                left=left,
            )
            for name in models
        ],
        files=files,
    )
    (folder / "manifest.json").write_bytes(content.file.data)
