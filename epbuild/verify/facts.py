"""Contents of one compiled model: its header, contexts and external data."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path, PurePosixPath

from msgspec import Struct

from epbuild.catalog.catalog import find_source_entry, name_source_ep
from epbuild.core.safepath import BadReference, locate
from epbuild.onnxfile.read.epcontext import EPContextNode, read_compatibility
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.payload import Payload
from epbuild.onnxfile.read.weights_files import find_weights
from epbuild.onnxfile.read.wire import MalformedModel

_MAX_NAME_LENGTH = 60


class Context(Struct, frozen=True):
    """Context of an EPContext node: the payload, or the reason why it cannot be read. Both are None if the node has no context."""

    node: EPContextNode
    payload: Payload | None = None
    flaw: str | None = None
    weights: str | None = None
    """Reference of the file beside the context binary that contains the context's weights. None if there is none."""


class Model(Struct, frozen=True, dict=True):
    """ONNX model of an artifact. Its contents are read on first use, and then kept."""

    folder: Path
    file: str
    """POSIX path below the artifact's folder."""
    asked_for: bool = False
    """True if the user passed the path of this model. Only then may the model be a link to a file outside its folder."""
    name_nodes: bool = False
    """True if the header includes the names of the model's nodes."""
    shared_data: Path | None = None
    """Folder of a shared asset with the model's external data. None if the data is beside the model."""

    @property
    def path(self) -> Path:
        return self.folder / self.file

    @property
    def data_folder(self) -> Path:
        """Folder to which the locations of external data are relative."""
        return self.path.parent if self.shared_data is None else self.shared_data

    @cached_property
    def header(self) -> ModelHeader | str:
        """Header of the model, or the reason why it cannot be read, as a clause that follows the model's name."""
        try:
            path = self.path if self.asked_for else locate(self.folder, self.file, "model")
            return read_header(path, name_nodes=self.name_nodes)
        except BadReference as error:
            return f"cannot be read: {error}"
        except MalformedModel as error:
            return f"is not a complete ONNX file: {error}"
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"

    @cached_property
    def compatibility(self) -> dict[str, str]:
        """Compatibility strings by EP. Empty if the model cannot be read."""
        found = {} if isinstance(self.header, str) else read_compatibility(self.header.metadata)
        return {name_source_ep(ep) or ep: text for ep, text in found.items()}

    @cached_property
    def size(self) -> int:
        """Size in bytes. Raises OSError."""
        return self.path.stat().st_size

    @property
    def is_compiled(self) -> bool:
        """True if the model can be read and has an EPContext node."""
        return not isinstance(self.header, str) and self.header.is_compiled

    @property
    def nodes(self) -> tuple[EPContextNode, ...]:
        """EPContext nodes. Empty if the model cannot be read."""
        return () if isinstance(self.header, str) else self.header.ep_context_nodes

    @cached_property
    def contexts(self) -> tuple[Context, ...]:
        return tuple(map(self._load_context, self.nodes))

    @cached_property
    def data_flaws(self) -> tuple[str, ...]:
        """Reasons why external data files cannot be read or are too short."""
        if isinstance(self.header, str):
            return ()
        return tuple(
            flaw for location, needed in self.header.external_data.items() if (flaw := self._find_data_flaw(location, needed))
        )

    @property
    def references(self) -> tuple[str, ...]:
        """Names of context binaries, their weights and external data, as the model spells them, without duplicates."""
        if isinstance(self.header, str):
            return ()
        binaries = (node.reference for node in self.nodes)
        weights = (context.weights for context in self.contexts)
        return tuple(dict.fromkeys(filter(None, (*binaries, *weights, *self.header.external_data))))

    def resolve_beside(self, name: str) -> str:
        """Return the POSIX path, below the artifact's folder, of a file that the model refers to."""
        return str(PurePosixPath(self.file).parent / name)

    def find_binary(self, node: EPContextNode) -> str | None:
        """Return the path of a node's context binary below the artifact's folder, or None if the node refers to none."""
        return None if node.reference is None else self.resolve_beside(node.reference)

    def _load_context(self, node: EPContextNode) -> Context:
        payload = None
        try:
            payload = Payload.of(self.path, node)
            weights = find_weights(self.path, node, find_source_entry(node.source))
        except BadReference as error:
            return Context(node, payload, str(error))
        except OSError as error:
            return Context(node, flaw=f"the context binary '{node.reference}' cannot be read: {error.strerror or error}")
        is_empty = payload is not None and node.reference is not None and not payload.size
        return Context(node, payload, f"the context binary '{node.reference}' is empty" if is_empty else None, weights)

    def _find_data_flaw(self, location: str, needed: int) -> str | None:
        try:
            size = locate(self.data_folder, location, "external data file").stat().st_size
        except BadReference as error:
            return str(error)
        except OSError as error:
            return f"the external data file '{location}' cannot be read: {error.strerror or error}"
        too_short = f"the external data file '{location}' has {size:,} bytes; the model needs {needed:,}"
        return too_short if size < needed else None


def format_node_title(node: EPContextNode) -> str:
    name = node.name if len(node.name) <= _MAX_NAME_LENGTH else f"{node.name[:_MAX_NAME_LENGTH]}…"
    return f"the EPContext node '{name}'" if name else "an EPContext node without a name"
