"""Provenance of an output: an in-toto statement with a SLSA predicate.

Both are version 1, in plain JSON and unsigned. The formats: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md and
https://slsa.dev/spec/v1.0/provenance. docs/concepts/file-formats.md describes the fields that epbuild writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from epbuild import __version__
from epbuild.archive.artifact import FileEntry
from epbuild.core.canonical import JsonFile
from epbuild.core.redact import conceal_values
from epbuild.core.safepath import read_regular
from epbuild.output.materials import Distribution, InputFile, Materials, get_toolchain
from epbuild.plan.made import Made

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "pkg:pypi/epbuild#build/v1"
"""Type of the build. Its version is incremented when readers of the parameters must change."""

_MEMBER = ("read", "inputs", "free_dimensions", "denoted_dimensions", "compile")
_GROUP = ("share_weights", "share_initializers", "session_options")


def build_statement(
    materials: Materials, files: Iterable[FileEntry], *, invocation: str, output: Mapping[str, Any] | None = None
) -> JsonFile:
    """Return the provenance statement about `files`. The order of the files does not affect it.

    `invocation` is the key of the output. `output` has the output's settings in the recipe as plain data, such as the layout. The format
    requires at least one subject.
    """
    subjects = sorted({(file.path, file.digest) for file in files})
    document = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in subjects],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _drop_empty(
                    {
                        "recipe": {"name": materials.recipe.name, "file": materials.recipe.files[0].name},
                        "output": _drop_empty(output or {}),
                        "preparations": [_describe_preparation(item) for item in materials.preparations],
                        "builds": [_describe_build(built, materials) for built in materials.built],
                    }
                ),
                "internalParameters": {
                    "actions": {item.action.id: item.key for item in (*materials.preparations, *materials.built)},
                    "toolchains": {
                        toolchain.name: {"python": toolchain.python, "platform": toolchain.platform}
                        for toolchain in materials.toolchains.values()
                    },
                },
                "resolvedDependencies": list(_list_dependencies(materials)),
            },
            "runDetails": {
                "builder": {"id": Distribution("epbuild", __version__).purl, "version": {"epbuild": __version__}},
                "metadata": {"invocationId": invocation},
            },
        },
    }
    return JsonFile(document)


def is_statement_about(file: Path, name: str) -> bool:
    """Return whether a file is a statement of any release of epbuild that has `name` among its subjects."""
    try:
        document = json.loads(read_regular(file))
        build_type: str = document["predicate"]["buildDefinition"]["buildType"]
        return build_type == BUILD_TYPE and any(subject["name"] == name for subject in document["subject"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _describe_preparation(item: Made) -> dict[str, Any]:
    options = item.document["prepare"]
    described = {name: options[name] for name in sorted(options) if name != "option_files"}
    return {"step": item.action.id, "toolchain": get_toolchain(item), **described}


def _describe_build(built: Made, materials: Materials) -> dict[str, Any]:
    """Return the settings in the key document of a session group.

    Files and packages are left out, because the statement lists them with their digests.
    """
    group, document = built.group, built.document
    return _drop_empty(
        {
            "step": group.id,
            "group": group.group,
            "target": group.target.name,
            "toolchain": get_toolchain(built),
            "allow_nondeterminism": True if group.allow_nondeterminism else None,
            "models": [
                {
                    **_describe_member(listed, member.model.name, materials),
                    **_drop_empty({"prepared": [item.action.id for item in built.prepared(member.name)]}),
                }
                for member, listed in zip(group.members, document["members"], strict=True)
            ],
            "eps": [_describe_ep(ep) for ep in document["eps"]],
            **{name: document.get(name) for name in _GROUP},
            "environment": conceal_values(document.get("environment", {})),
            "custom_ops": [ops["name"] for ops in document.get("custom_ops", ())],
        }
    )


def _describe_member(member: Mapping[str, Any], model: str, materials: Materials) -> dict[str, Any]:
    source = materials.models[model]
    name = None if source.maker else source.graph.uri or source.graph.name
    settings = {**{name: member.get(name) for name in _MEMBER}, "compile": _drop_empty(member["compile"])}
    return _drop_empty({"name": member["name"], "source": name, **settings})


def _describe_ep(ep: Mapping[str, Any]) -> dict[str, Any]:
    device = {**ep["device"], "virtual": ep["device"]["virtual"] or None}
    return _drop_empty({"name": ep["name"], "device": _drop_empty(device), "options": ep["options"]})


def _drop_empty(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return `parameters` without empty values. SLSA treats null, empty and absent values alike."""
    return {name: value for name, value in parameters.items() if value not in (None, {}, [])}


def _list_dependencies(materials: Materials) -> Iterator[dict[str, Any]]:
    models = [model for model in materials.models.values() if not model.maker]
    kinds: dict[str, Iterable[InputFile]] = {
        "recipe": materials.recipe.files,
        "model": (model.graph for model in models),
        "external-data": (data for model in models for data in model.data),
        "preparation-file": (
            InputFile(name.partition("/")[2], digest)
            for item in materials.preparations
            for name, digest in item.document["staged"].items()
        ),
        "option-file": materials.option_files,
        "asset": materials.assets,
        "library": (library for toolchain in materials.toolchains.values() for library in toolchain.libraries),
    }
    for kind, files in kinds.items():
        for file in sorted(set(files)):
            found = {"name": file.name, "digest": {"sha256": file.sha256}, "annotations": {"kind": kind}}
            yield {**found, "uri": file.uri} if file.uri else found
    packages = {package for toolchain in materials.toolchains.values() for package in toolchain.packages}
    for package in sorted(packages):
        yield {"name": package.name, "uri": package.purl, "annotations": {"kind": "package"}}
