"""Everything that touches ONNX bytes: graph headers without weights, external data references, EPContext nodes, packaging, merging."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epbuild.late import late
from epbuild.onnxfile.embed import PROTOBUF_LIMIT, embed, extract
from epbuild.onnxfile.epcontext import (
    SCHEMA_TYPES,
    BadReference,
    EPContextNode,
    MissingReference,
    check_reference,
    locate,
    resolve,
)
from epbuild.onnxfile.headers import (
    Dimension,
    ExternalData,
    Initializer,
    ModelHeader,
    NamedNode,
    ValueInfo,
    operator_name,
    read_header,
    symbol,
)
from epbuild.onnxfile.refusal import ChangeRefused
from epbuild.onnxfile.relink import relink
from epbuild.onnxfile.wire import MalformedModel

if TYPE_CHECKING:
    from epbuild.onnxfile.connection import Connection, read_connection
    from epbuild.onnxfile.initializers import SharedInitializers, share_initializers
    from epbuild.onnxfile.merge import Merged, members_of, merge_models
    from epbuild.onnxfile.nodenames import rename_nodes
    from epbuild.onnxfile.packaging import Packaging, Repackaged, repackage
    from epbuild.onnxfile.places import ModelPlace, model_places
    from epbuild.onnxfile.sizes import FixedSizes, Misfit, Shape, fit_sizes, fix_sizes, shape_text, sized_header
    from epbuild.onnxfile.suggestion import suggest_sizes
    from epbuild.onnxfile.weights import Weight, WeightBytes, count_weights, most_in_common, read_weights

__all__ = [
    "PROTOBUF_LIMIT",
    "SCHEMA_TYPES",
    "BadReference",
    "ChangeRefused",
    "Connection",
    "Dimension",
    "EPContextNode",
    "ExternalData",
    "FixedSizes",
    "Initializer",
    "MalformedModel",
    "Merged",
    "Misfit",
    "MissingReference",
    "ModelHeader",
    "ModelPlace",
    "NamedNode",
    "Packaging",
    "Repackaged",
    "Shape",
    "SharedInitializers",
    "ValueInfo",
    "Weight",
    "WeightBytes",
    "check_reference",
    "count_weights",
    "embed",
    "extract",
    "fit_sizes",
    "fix_sizes",
    "locate",
    "members_of",
    "merge_models",
    "model_places",
    "most_in_common",
    "operator_name",
    "read_connection",
    "read_header",
    "read_weights",
    "relink",
    "rename_nodes",
    "repackage",
    "resolve",
    "shape_text",
    "share_initializers",
    "sized_header",
    "suggest_sizes",
    "symbol",
]

__getattr__ = late(
    __name__,
    {
        "connection": ("Connection", "read_connection"),
        "initializers": ("SharedInitializers", "share_initializers"),
        "merge": ("Merged", "members_of", "merge_models"),
        "nodenames": ("rename_nodes",),
        "packaging": ("Packaging", "Repackaged", "repackage"),
        "places": ("ModelPlace", "model_places"),
        "sizes": ("FixedSizes", "Misfit", "Shape", "fit_sizes", "fix_sizes", "shape_text", "sized_header"),
        "suggestion": ("suggest_sizes",),
        "weights": ("Weight", "WeightBytes", "count_weights", "most_in_common", "read_weights"),
    },
)
