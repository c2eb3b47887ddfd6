"""The bill of materials of an output: CycloneDX 1.6 in JSON, with the models as machine learning models (an ML-BOM).

The format: https://cyclonedx.org/docs/1.6/json/. What epbuild says in it is in docs/provenance.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from epbuild import __version__
from epbuild.archive.artifact import Artifact
from epbuild.core.canonical import canonical_json
from epbuild.output.emitted import EmittedModel
from epbuild.output.jsonfile import JsonFile
from epbuild.output.materials import InputFile, Materials, Package, SourceModel, Toolchain

SPEC_VERSION = "1.6"

_OF_THE_OUTPUT = ("manifest", "provenance", "bom")
"""The roles of files that tell of an output and are no part of it."""
_MODEL = "machine-learning-model"
_NOT_SHIPPED = {"scope": "excluded"}
"""What made the output and is not needed to run it."""


def bill(materials: Materials, models: Iterable[EmittedModel], artifacts: Iterable[Artifact], *, name: str) -> JsonFile:
    """The bill, which is the same for equal values in any order.

    `artifacts` are the files of the output, `name` is what it is called. A model that several parts of it have is told of once. Raises
    KeyError when a model names a file, a source or an action that is not there.
    """
    files = {artifact.path: artifact for artifact in artifacts if artifact.role not in _OF_THE_OUTPUT}
    emitted = [model for _, model in sorted({model.file: model for model in models}.items())]
    others = [files[path] for path in sorted(files.keys() - {model.file for model in emitted})]
    needed = {path for model in emitted for path in model.refers}
    tops = [*(model.file for model in emitted), *(artifact.path for artifact in others if artifact.path not in needed)]
    components = [
        *(_emitted(model, files, materials) for model in emitted),
        *(_other(artifact) for artifact in others),
        *_sources(materials),
        *_tools(materials),
    ]
    links = {
        _output(name): [_emitted_ref(path) for path in tops],
        **{_emitted_ref(model.file): _needs(model, files, materials) for model in emitted},
        **{_emitted_ref(artifact.path): [] for artifact in others},
        **{_model_ref(model): [_file_ref(file) for file in model.data] for model in materials.models.values()},
        **{_file_ref(file): [] for model in materials.models.values() for file in model.data},
        # What packages need of each other is not known here, so that they are not in the graph as ones that need nothing.
        **{_toolchain_ref(toolchain): _held(toolchain) for toolchain in materials.toolchains.values()},
    }
    document = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", **_package(Package("epbuild", __version__))}]},
            "component": {"type": "data", "bom-ref": _output(name), "name": name},
        },
        "components": sorted(components, key=lambda component: str(component["bom-ref"])),
        "dependencies": [_dependency(ref, links[ref]) for ref in sorted(links)],
    }
    # Told from the content, so that an equal bill has an equal number.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, canonical_json(document))
    return JsonFile({**document, "serialNumber": serial.urn})


def _emitted(model: EmittedModel, files: Mapping[str, Artifact], materials: Materials) -> dict[str, Any]:
    built = [item for item in materials.built if item.action in model.actions]
    facts = {
        *(("path", model.file),),
        *(("group", item.group) for item in built),
        *(("target", item.target) for item in built),
        *(("action-key", item.key) for item in built),
        *(("ep", str(ep["name"])) for item in built for ep in item.document["eps"]),
        *((f"compatibility:{ep}", text) for ep, text in model.compatibility.items()),
    }
    values = {"inputs": model.inputs, "outputs": model.outputs}
    known = {kind: [{"format": _format(value)} for value in found] for kind, found in values.items() if found}
    return {
        "type": _MODEL,
        "bom-ref": _emitted_ref(model.file),
        "name": model.name,
        "hashes": _hashes(files[model.file].sha256),
        "properties": _properties(facts),
        **({"modelCard": {"modelParameters": known}} if known else {}),
    }


def _other(artifact: Artifact) -> dict[str, Any]:
    """A file of the output that is no model."""
    return {
        "type": "file",
        "bom-ref": _emitted_ref(artifact.path),
        "name": artifact.path,
        "hashes": _hashes(artifact.sha256),
        "properties": _properties({("role", artifact.role)}),
    }


def _sources(materials: Materials) -> Iterator[dict[str, Any]]:
    models = materials.models.values()
    for model in models:
        yield {**_file(model.graph), "type": _MODEL, "bom-ref": _model_ref(model), "name": model.name, **_path(model.graph)}
    for file in {file for model in models for file in model.data}:
        yield {**_file(file), "type": "data"}


def _tools(materials: Materials) -> Iterator[dict[str, Any]]:
    toolchains = materials.toolchains.values()
    for toolchain in toolchains:
        facts = {("python", toolchain.python), ("platform", toolchain.platform)}
        ref = _toolchain_ref(toolchain)
        yield {"type": "platform", "bom-ref": ref, "name": toolchain.name, "properties": _properties(facts), **_NOT_SHIPPED}
    for package in {package for toolchain in toolchains for package in toolchain.packages}:
        yield {"type": "library", "bom-ref": package.purl, **_package(package), **_NOT_SHIPPED}
    libraries = {library for toolchain in toolchains for library in toolchain.libraries}
    for file in {*libraries, *materials.option_files}:
        yield {**_file(file), **_NOT_SHIPPED}


def _needs(model: EmittedModel, files: Mapping[str, Artifact], materials: Materials) -> list[str]:
    actions = {built.action: built for built in materials.built}
    built = [actions[action] for action in model.actions]
    return [
        *(_emitted_ref(files[path].path) for path in model.refers),
        *(_model_ref(materials.models[source]) for source in model.sources),
        *(_toolchain_ref(materials.toolchains[item.toolchain]) for item in built),
        *(
            _toolchain_ref(materials.toolchains[name])
            for name in sorted({one.toolchain for item in built for one in item.preparations})
        ),
        *(_file_ref(file) for item in built for file in item.option_files),
    ]


def _held(toolchain: Toolchain) -> list[str]:
    return [*(package.purl for package in toolchain.packages), *(_file_ref(library) for library in toolchain.libraries)]


def _dependency(ref: str, needed: Iterable[str]) -> dict[str, Any]:
    found = sorted(set(needed))
    return {"ref": ref, "dependsOn": found} if found else {"ref": ref}


def _package(package: Package) -> dict[str, str]:
    return {"name": package.name, "version": package.version, "purl": package.purl}


def _file(file: InputFile) -> dict[str, Any]:
    found = {"type": "file", "bom-ref": _file_ref(file), "name": file.name, "hashes": _hashes(file.sha256)}
    return {**found, "externalReferences": [{"type": "distribution", "url": file.uri}]} if file.uri else found


def _path(file: InputFile) -> dict[str, Any]:
    return {"properties": _properties({("path", file.name)})}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _properties(facts: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": f"epbuild:{name}", "value": value} for name, value in sorted(facts)]


def _format(value: Mapping[str, Any]) -> str:
    """An input or output on one line, such as `image: float32[1, 3, 32, 32]`; a dimension that is not known is a question mark."""
    shape = value["shape"]
    sizes = "" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
    return f"{value['name']}: {value['type']}{sizes}"


def _output(name: str) -> str:
    return f"output:{name}"


def _emitted_ref(path: str) -> str:
    return f"emitted:{path}"


def _model_ref(model: SourceModel) -> str:
    return f"model:{model.name}"


def _toolchain_ref(toolchain: Toolchain) -> str:
    return f"toolchain:{toolchain.name}"


def _file_ref(file: InputFile) -> str:
    return f"file:{file.uri or file.name}@sha256:{file.sha256}"
