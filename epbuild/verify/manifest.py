"""Manifests of artifacts, read for checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from epbuild.core.canonical import conforms, parse_json, read_schema
from epbuild.core.defaults import MANIFEST
from epbuild.core.digest import Blob
from epbuild.core.records import convert
from epbuild.core.safepath import BadReference, check_reference, open_regular
from epbuild.plan.result import FallbackNode, ModelSignature
from epbuild.plan.target import WEIGHTLESS_KEYS

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator as FastValidator

_FORMAT = 1
_MAX_BYTES = 64 << 20  # A manifest lists all fallback nodes, which can be thousands.
_MAX_QUOTE_LENGTH = 120
_NEW_KEYS = {"inputs", "outputs"}
_SHARED = re.compile(r"((?:\.\./)+shared_assets/sha256-[0-9a-f]{64})/(.+)")


class BadManifest(ValueError):
    """Error for an unusable manifest. The text is the reason."""


class ListedFile(Struct, frozen=True):
    """Emitted file: POSIX path below the manifest's folder, role, size and digest.

    `shared` is the folder of a shared asset, relative to the manifest's folder, and the file's path in that folder. With `shared`, `path`
    is only the path that models refer to.
    """

    path: str
    role: str
    size: int
    sha256: str
    plain: Blob | None = None
    """Content of an encrypted file before its encryption."""
    shared: tuple[str, str] | None = None


class ListedModel(Struct, frozen=True):
    """Emitted EPContext model, with facts about its source or, for a merged model, its sources.

    `signature` is the signature of the source. It is None if the manifest has no signature, or if there are several
    sources.
    """

    name: str
    file: str
    source_data: frozenset[str]
    signature: ModelSignature | None
    left: tuple[FallbackNode, ...] = ()
    """Fallback nodes."""
    compiled: bool = True
    action_key: str = ""
    """Action key of the session group that compiled the model. If the group shares weights, models with equal keys share them."""


class Manifest(Struct, frozen=True):
    """Contents of a manifest. `eps` has the EPs of the target, in order, with their options.

    The manifest of a model package lists no models: each model is in a folder with its own manifest.
    """

    group: str = ""
    target: str = ""
    share_weights: bool = False
    eps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    models: tuple[ListedModel, ...] = ()
    files: Mapping[str, ListedFile] = field(default_factory=dict)
    provenance: str | None = None
    """File of the provenance statement."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """JSON document of the manifest."""

    @property
    def asks_for_weightless(self) -> bool:
        """True if the target's session options requested weightless contexts."""
        options = self.document.get("target", {}).get("session_options", {})
        return any(options.get(key, "0") != "0" for key in WEIGHTLESS_KEYS)

    @property
    def unlisted(self) -> frozenset[str]:
        """Files that a manifest cannot list: the manifest itself and its provenance statement."""
        return frozenset({MANIFEST} if self.provenance is None else {MANIFEST, self.provenance})


def read_manifest(path: Path) -> Manifest | None:
    """Read a manifest. Return None if the file belongs to another program. Raises BadManifest and OSError."""
    with open_regular(path) as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise BadManifest("it is too large for a manifest")
    try:
        document = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"it is not JSON: {_shorten(error)}") from error
    if isinstance(document, dict) and "components" in document:
        return _read_package(document)
    if not isinstance(document, dict) or not {"format", "group", "files"} & document.keys():
        return None
    if document.get("format") != _FORMAT:
        raise BadManifest(
            f"its format is {_shorten(document.get('format'))}, but this version of epbuild supports only {_FORMAT}"
        )
    _check_schema(document)
    files = list(_read_files(document["files"]))
    models = tuple(_read_model(item) for item in document["models"])
    _check_paths((*(item.path for item in files), *(model.file for model in models)))
    of_models = {item.path for item in files if item.role == "model"}
    for model in models:
        if model.file not in of_models:
            raise BadManifest(f"it lists the model '{_shorten(model.name)}' but not its file")
    target = document["target"]
    return Manifest(
        group=document["group"],
        target=target["name"],
        share_weights=document["share_weights"],
        eps={ep["ep"]: ep["provider_options"] for ep in target["eps"]},
        models=models,
        files={item.path: item for item in files},
        provenance=document.get("provenance"),
        document=document,
    )


def _read_package(document: Mapping[str, Any]) -> Manifest | None:
    """Read the manifest of a model package. Return None if it belongs to another program."""
    metadata = document.get("additional_metadata")
    own = metadata.get("epbuild") if isinstance(metadata, dict) else None
    if not isinstance(own, dict):
        return None
    if own.get("format") != _FORMAT:
        raise BadManifest(f"its format is {_shorten(own.get('format'))}, but this version of epbuild supports only {_FORMAT}")
    try:
        files = list(_read_files(own["files"]))
        provenance = str(own["provenance"]) if "provenance" in own else None
    except (KeyError, TypeError) as error:
        raise BadManifest("its list of files is invalid for an epbuild package") from error
    _check_paths(item.path for item in files)
    return Manifest(files={item.path: item for item in files}, provenance=provenance, document=document)


def _read_files(listed: Iterable[Mapping[str, Any]]) -> Iterator[ListedFile]:
    for item in listed:
        plain = Blob(str(item["plain"]["sha256"]), int(item["plain"]["size"])) if "plain" in item else None
        shared = _read_shared(item) if "shared" in item else None
        yield ListedFile(str(item["path"]), str(item["role"]), int(item["size"]), str(item["sha256"]), plain, shared)


def _read_shared(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the folder of a shared asset and the path of a file in it. Raises BadManifest if the file cannot be in a shared asset."""
    match = _SHARED.fullmatch(str(item["shared"]))
    if match is None:
        raise BadManifest(f"it lists a file in an invalid shared asset: {_shorten(item['shared'])}")
    _check_paths([match[2]])
    if item["role"] != "external-data":
        raise BadManifest(f"it lists a shared file that is not external data: {_shorten(item['path'])}")
    if not f"/{item['path']}".endswith(f"/{match[2]}"):
        raise BadManifest(f"it lists a file that has another name in its shared asset: {_shorten(item['path'])}")
    return match[1], match[2]


def _check_paths(places: Iterable[str]) -> None:
    for place in places:
        try:
            check_reference(place)
        except BadReference as error:
            raise BadManifest(f"it lists a file outside its folder: {_shorten(error)}") from error


def _check_schema(document: Mapping[str, Any]) -> None:
    if conforms(document, _make_fast_validator()):
        return
    for error in _make_validator().iter_errors(document):
        # Additional keys of newer releases and missing keys of older releases are harmless. An incompatible change would have
        # increased the format's number.
        newer = error.validator == "additionalProperties"
        older = error.validator == "required" and set(error.validator_value) - error.instance.keys() <= _NEW_KEYS
        if not newer and not older:
            raise BadManifest(f"{error.json_path} is invalid: {_shorten(error.message)}")


@cache
def _make_fast_validator() -> FastValidator:
    import jsonschema_rs  # Import it here, because few commands check a manifest.

    return jsonschema_rs.Draft202012Validator(read_schema("manifest"))


@cache
def _make_validator() -> Any:
    # Import it here, because the import takes 0.05 s or more, and most manifests are valid.
    from jsonschema import Draft202012Validator

    return Draft202012Validator(read_schema("manifest"))


def _read_model(item: Mapping[str, Any]) -> ListedModel:
    return ListedModel(
        name=item["name"],
        file=item["file"],
        # External data that the compile needs: data of the source, or the weights file of the group.
        source_data=frozenset(
            location
            for each in list_sources(item).values()
            for location in ([each["weights_file"]] if "weights_file" in each else each["external_data"])
        ),
        signature=find_source_signature(item),
        left=convert(item.get("left", []), tuple[FallbackNode, ...]),
        compiled=item.get("compiled", True),
        action_key=item["action_key"],
    )


def find_source_signature(model: Mapping[str, Any]) -> ModelSignature | None:
    """Return the signature of a model's source in a manifest. None if the manifest has no signature or several sources."""
    source = model.get("source", {})
    return convert(source, ModelSignature) if {"inputs", "outputs"} <= source.keys() else None


def list_sources(model: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the sources of a model in a manifest, by name. A merged model has one source per member; other models have one."""
    listed = [model] if "source" in model else model["merged"]
    return {item["name"]: item["source"] for item in listed}


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_QUOTE_LENGTH else f"{text[:_MAX_QUOTE_LENGTH]}…"
