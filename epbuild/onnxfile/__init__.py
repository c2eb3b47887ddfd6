"""Everything that touches ONNX bytes: graph headers without weights, external data references, EPContext nodes, relinking."""

from epbuild.onnxfile.epcontext import BadReference, EPContextNode, MissingReference, check_reference, resolve
from epbuild.onnxfile.headers import (
    Dimension,
    ExternalData,
    Initializer,
    ModelHeader,
    ValueInfo,
    read_header,
)
from epbuild.onnxfile.relink import relink
from epbuild.onnxfile.wire import MalformedModel

__all__ = [
    "BadReference",
    "Dimension",
    "EPContextNode",
    "ExternalData",
    "Initializer",
    "MalformedModel",
    "MissingReference",
    "ModelHeader",
    "ValueInfo",
    "check_reference",
    "read_header",
    "relink",
    "resolve",
]
