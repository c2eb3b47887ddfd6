"""Models, sources and target of a part, as its manifest describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from epbuild.core.redact import conceal_values
from epbuild.output.files import OutputFile, RelinkedModel
from epbuild.output.manifest import ManifestModel
from epbuild.output.merging import compute_merged_key
from epbuild.plan.made import Made, describe_preparations
from epbuild.plan.request import build_ep_document
from epbuild.plan.result import ContextNode
from epbuild.plan.steps import Merging, Part
from epbuild.verify.figures import describe_measured_figures
from epbuild.verify.live.judging import list_numbers


def list_models(part: Part, made: Sequence[Made], files: Sequence[OutputFile]) -> list[ManifestModel]:
    """Return the manifest entries of a part's compiled models, with the references that the part's `files` have."""
    references = {file.path: file.content.references for file in files if isinstance(file.content, RelinkedModel)}
    return [
        ManifestModel(
            name=model.member,
            file=part.models[model.member],
            action_key=item.key,
            compiled_size=item.compiled.total_bytes,
            source=sources[model.member],
            nodes=[_describe_node(node, references.get(part.models[model.member], {})) for node in model.nodes],
            fallback_nodes=model.fallback_nodes,
            compatibility=model.compatibility,
            left=msgspec.to_builtins(model.left),
            compiled=item.group.compiled,
        )
        for item, sources in ((item, _describe_sources(item)) for item in made)
        for model in item.compiled.models
    ]


def describe_merged_model(part: Part, merging: Merging, made: Sequence[Made]) -> ManifestModel:
    """Return the manifest entry of a part's merged model, without the model's nodes and compatibility strings."""
    members = [(item, model) for item in made for model in item.compiled.models]
    sources = {name: source for item in made for name, source in _describe_sources(item).items()}
    return ManifestModel(
        name=merging.name,
        file=part.models[merging.name],
        action_key=compute_merged_key(merging, {model.member: item.key for item, model in members}),
        source=None,
        nodes=(),
        fallback_nodes=sum(model.fallback_nodes for _, model in members),
        compatibility={},
        left=[
            msgspec.to_builtins(replace(left, node=f"{merging.prefixes[model.member]}{left.node}" if left.node else ""))
            for _, model in members
            for left in model.left
        ],
        merged=[
            {
                "name": model.member,
                "action_key": item.key,
                "compiled_size": item.compiled.total_bytes,
                "source": sources[model.member],
            }
            for item, model in members
        ],
    )


def add_numbers(models: Sequence[ManifestModel], checked: Made) -> list[ManifestModel]:
    """Return copies of the entries of `models` with the figures of a verification. A merged model gets the figures of each member."""
    return [
        replace(
            model,
            numbers={} if model.merged else list_numbers(checked, model.name),
            merged=[{**member, **list_numbers(checked, member["name"])} for member in model.merged],
        )
        for model in models
    ]


def add_measured_figures(models: Sequence[ManifestModel], measured: Made) -> list[ManifestModel]:
    """Return copies of the entries of `models` with the figures of a measurement. A merged model gets the figures of each member."""
    return [
        replace(
            model,
            numbers=model.numbers if model.merged else {**model.numbers, **describe_measured_figures(measured, model.name)},
            merged=[{**member, **describe_measured_figures(measured, member["name"])} for member in model.merged],
        )
        for model in models
    ]


def describe_target(part: Part) -> dict[str, Any]:
    """Return the manifest entry of a part's target, with the target's options."""
    target = part.target
    return {
        "name": target.name,
        "eps": [
            {
                "ep": ep.entry.ep,
                "module": ep.entry.module,
                "device": build_ep_document(ep)["device"],
                "provider_options": ep.lasting_options,
            }
            for ep in target.eps
        ],
        "session_options": dict(target.session_options),
        **({"run_options": dict(target.run_options)} if target.run_options else {}),
        "environment": conceal_values(target.environment),
        "unchecked_options": list(target.unchecked),
        **({"allow_nondeterminism": True} if part.allow_nondeterminism else {}),
        **({"not_reproducible": part.known_to_differ} if part.known_to_differ else {}),
    }


def list_custom_ops(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the manifest entries of the custom operators in a key document, with the names by which applications find them."""
    return [
        {"library": ops["name"], "sha256": ops["library"]} if ops["library"] else {"module": ops["name"]}
        for ops in document.get("custom_ops", ())
    ]


def _describe_sources(made: Made) -> dict[str, dict[str, Any]]:
    """Return the manifest entry for the source of each member of a session group, by member."""
    signatures = {model.member: model.source for model in made.compiled.models}
    return {
        member.name: {
            "sha256": listed["graph"],
            "external_data": listed["external"],
            **({"model": member.model.name} if member.model.name != member.name else {}),
            **({"sizes": listed["inputs"]} if "inputs" in listed else {}),
            **describe_preparations(made.prepared(member.name)),
            **msgspec.to_builtins(signatures[member.name]),
        }
        for member, listed in zip(made.group.members, made.document["members"], strict=True)
    }


def _describe_node(node: ContextNode, references: Mapping[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(node)
    return document if node.reference is None else {**document, "reference": references.get(node.reference, node.reference)}
