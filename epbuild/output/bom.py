"""Bill of materials of an output: CycloneDX 1.6 in JSON.

It lists the models as machine learning models (an ML-BOM). The format: https://cyclonedx.org/docs/1.6/json/.
docs/concepts/file-formats.md describes the fields that epbuild writes.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from epbuild import __version__
from epbuild.archive.artifact import FileEntry
from epbuild.core.canonical import JsonFile, encode_canonical
from epbuild.onnxfile.read.sizes import format_shape
from epbuild.output.manifest import ManifestModel, find_references, resolve_beside
from epbuild.output.materials import (
    Distribution,
    InputFile,
    Materials,
    ToolchainMaterial,
    get_toolchain,
    list_option_files,
    list_preparations,
)
from epbuild.plan.made import Made

SPEC_VERSION = "1.6"

_OF_THE_OUTPUT = ("manifest", "provenance", "bom")
"""Roles of the files that describe an output and are not part of it."""
_MODEL = "machine-learning-model"
_NOT_SHIPPED = {"scope": "excluded"}
"""Scope of components that are not needed to run the output."""


class BomModel(Struct, frozen=True):
    """Model of an output, as the bill of materials describes it. `file` is the POSIX path below the output's root."""

    name: str
    file: str
    sources: tuple[str, ...]
    """Source models: one, or several for a merged model."""
    actions: tuple[str, ...] = ()
    """Ids of the session groups that compiled the model; empty for an uncompiled model."""
    refers: tuple[str, ...] = ()
    """Paths of the output's files that the model refers to."""
    inputs: Sequence[Mapping[str, Any]] = ()
    """Name, type and shape of each input, as in the manifest."""
    outputs: Sequence[Mapping[str, Any]] = ()
    compatibility: Mapping[str, str] = field(default_factory=dict)
    """Compatibility string of each EP."""


def list_compiled_models(
    models: Iterable[ManifestModel], built: Iterable[Made], data: Mapping[str, Sequence[str]], folder: str
) -> list[BomModel]:
    """Describe the compiled models of one group and target, from their manifest. `folder` is the folder of the part.

    `built` are the models' session groups. `data` has the locations of the external data beside the model, by source model.
    """
    actions = {item.key: item.action.id for item in built}
    found = []
    for model in models:
        members = model.merged or [{"name": model.name, "action_key": model.action_key, "source": model.source}]
        source = model.source or {}
        found.append(
            BomModel(
                name=model.name,
                file=posixpath.join(folder, model.file),
                sources=tuple(dict.fromkeys(_get_source_name(str(member["name"]), member["source"]) for member in members)),
                actions=tuple(dict.fromkeys(actions[str(member["action_key"])] for member in members)),
                refers=find_references(model, folder, data),
                inputs=source.get("inputs", ()),
                outputs=source.get("outputs", ()),
                compatibility=model.compatibility,
            )
        )
    return found


def list_base_models(models: Iterable[ManifestModel], base: Mapping[str, str], folder: str) -> list[BomModel]:
    """Describe the uncompiled models that are shipped. `base` has the path of each model below `folder`, by the model's name."""
    found = []
    for model in models:
        if model.name in base and model.source is not None:
            file = posixpath.join(folder, base[model.name])
            found.append(describe_base_model(model.name, file, model.source, resolve_beside(file, model.source["external_data"])))
    return found


def describe_base_model(name: str, file: str, source: Mapping[str, Any], refers: tuple[str, ...]) -> BomModel:
    """Describe an uncompiled model that is shipped. `source` is the value of `source` for this model in the manifest."""
    # If the recipe sets sizes, the manifest has the sizes used for the compile. The uncompiled model has other sizes.
    known = {} if "sizes" in source else {kind: source.get(kind, ()) for kind in ("inputs", "outputs")}
    return BomModel(name, file, (_get_source_name(name, source),), refers=refers, **known)


def _get_source_name(member: str, source: Mapping[str, Any] | None) -> str:
    return str((source or {}).get("model", member))


def build_bill(materials: Materials, models: Iterable[BomModel], listed: Iterable[FileEntry], *, name: str) -> JsonFile:
    """Return the bill of materials. The order of the arguments' items does not affect it.

    `listed` are the files of the output, and `name` is the output's name. A model in several parts is listed once. Raises KeyError if a
    model names a file, a source or an action that does not exist.
    """
    files = {file.path: file for file in listed if file.role not in _OF_THE_OUTPUT}
    emitted = [model for _, model in sorted({model.file: model for model in models}.items())]
    others = [files[path] for path in sorted(files.keys() - {model.file for model in emitted})]
    needed = {path for model in emitted for path in model.refers}
    tops = [*(model.file for model in emitted), *(file.path for file in others if file.path not in needed)]
    components = [
        *(_describe_emitted(model, files, materials) for model in emitted),
        *(_describe_other(file) for file in others),
        *_describe_sources(materials),
        *_describe_toolchains(materials),
    ]
    links = {
        f"output:{name}": [f"emitted:{path}" for path in tops],
        **{f"emitted:{model.file}": _list_needs(model, files, materials) for model in emitted},
        **{f"emitted:{file.path}": [] for file in others},
        **{f"model:{model.name}": [_make_file_ref(file) for file in model.data] for model in materials.models.values()},
        **{_make_file_ref(file): [] for model in materials.models.values() for file in model.data},
        # Packages are not in the graph, as their dependencies are unknown. An entry without dependencies would mean that there are none.
        **{f"toolchain:{toolchain.name}": _list_contents(toolchain) for toolchain in materials.toolchains.values()},
    }
    document = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", **_describe_package(Distribution("epbuild", __version__))}]},
            "component": {"type": "data", "bom-ref": f"output:{name}", "name": name},
        },
        "components": sorted(components, key=lambda component: str(component["bom-ref"])),
        "dependencies": [_describe_dependency(ref, links[ref]) for ref in sorted(links)],
    }
    # Derived from the content, so that equal bills have equal serial numbers.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, encode_canonical(document))
    return JsonFile({**document, "serialNumber": serial.urn})


def _describe_emitted(model: BomModel, files: Mapping[str, FileEntry], materials: Materials) -> dict[str, Any]:
    built = [item for item in materials.built if item.action.id in model.actions]
    facts = {
        ("path", model.file),
        *(("group", item.group.group) for item in built),
        *(("target", item.group.target.name) for item in built),
        *(("action-key", item.key) for item in built),
        *(("ep", str(ep["name"])) for item in built for ep in item.document["eps"]),
        *((f"compatibility:{ep}", text) for ep, text in model.compatibility.items()),
    }
    values = {"inputs": model.inputs, "outputs": model.outputs}
    known = {kind: [{"format": _format_value(value)} for value in found] for kind, found in values.items() if found}
    return {
        "type": _MODEL,
        "bom-ref": f"emitted:{model.file}",
        "name": model.name,
        "hashes": _describe_hash(files[model.file].digest),
        "properties": _describe_properties(facts),
        **({"modelCard": {"modelParameters": known}} if known else {}),
    }


def _describe_other(file: FileEntry) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": f"emitted:{file.path}",
        "name": file.path,
        "hashes": _describe_hash(file.digest),
        "properties": _describe_properties({("role", file.role)}),
    }


def _describe_sources(materials: Materials) -> Iterator[dict[str, Any]]:
    models = materials.models.values()
    for model in models:
        facts = _describe_properties({("made-by", model.maker) if model.maker else ("path", model.graph.name)})
        ref = f"model:{model.name}"
        yield {**_describe_input_file(model.graph), "type": _MODEL, "bom-ref": ref, "name": model.name, "properties": facts}
    for file in {file for model in models for file in model.data}:
        yield {**_describe_input_file(file), "type": "data"}


def _describe_toolchains(materials: Materials) -> Iterator[dict[str, Any]]:
    toolchains = materials.toolchains.values()
    for toolchain in toolchains:
        facts = {("python", toolchain.python), ("platform", toolchain.platform)}
        ref, name = f"toolchain:{toolchain.name}", toolchain.name
        yield {"type": "platform", "bom-ref": ref, "name": name, "properties": _describe_properties(facts), **_NOT_SHIPPED}
    for package in {package for toolchain in toolchains for package in toolchain.packages}:
        yield {"type": "library", "bom-ref": package.purl, **_describe_package(package), **_NOT_SHIPPED}
    libraries = {library for toolchain in toolchains for library in toolchain.libraries}
    for file in {*libraries, *materials.option_files}:
        yield {**_describe_input_file(file), **_NOT_SHIPPED}


def _list_needs(model: BomModel, files: Mapping[str, FileEntry], materials: Materials) -> list[str]:
    actions = {item.action.id: item for item in materials.built}
    built = [actions[action] for action in model.actions]
    toolchains = {get_toolchain(made) for item in built for made in (item, *list_preparations(item))}
    return [
        *(f"emitted:{files[path].path}" for path in model.refers),
        *(f"model:{materials.models[source].name}" for source in model.sources),
        *(f"toolchain:{materials.toolchains[name].name}" for name in toolchains),
        *(_make_file_ref(file) for item in built for file in list_option_files(item)),
    ]


def _list_contents(toolchain: ToolchainMaterial) -> list[str]:
    return [*(package.purl for package in toolchain.packages), *(_make_file_ref(library) for library in toolchain.libraries)]


def _describe_dependency(ref: str, needed: Iterable[str]) -> dict[str, Any]:
    found = sorted(set(needed))
    return {"ref": ref, "dependsOn": found} if found else {"ref": ref}


def _describe_package(package: Distribution) -> dict[str, str]:
    return {"name": package.name, "version": package.version, "purl": package.purl}


def _describe_input_file(file: InputFile) -> dict[str, Any]:
    found = {"type": "file", "bom-ref": _make_file_ref(file), "name": file.name, "hashes": _describe_hash(file.sha256)}
    return {**found, "externalReferences": [{"type": "distribution", "url": file.uri}]} if file.uri else found


def _describe_hash(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _describe_properties(facts: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": f"epbuild:{name}", "value": value} for name, value in sorted(facts)]


def _format_value(value: Mapping[str, Any]) -> str:
    """Return an input or output on one line, such as `image: float32[1, 3, 32, 32]`; an unknown dimension is a question mark."""
    shape = value["shape"]
    return f"{value['name']}: {value['type']}{'' if shape is None else format_shape(shape)}"


def _make_file_ref(file: InputFile) -> str:
    return f"file:{file.uri or file.name}@sha256:{file.sha256}"
