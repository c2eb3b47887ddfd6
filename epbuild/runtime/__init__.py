"""Runtime: opens emitted models in an application.

It opens the variant of a group that fits this machine, with the options that it was compiled with:

    with epbuild.runtime.open("dist/classifier") as group:
        probabilities = group["classifier"].run(None, {"image": image})

It needs Python 3.10, the standard library and onnxruntime, and no other part of epbuild: this folder can be copied into an application.
`docs/guides/runtime.md` describes how the variant is chosen.

Threads: groups may be opened and closed from any thread. A lock guards the state that plugin EPs keep for the whole process: registrations,
and the contexts that the sessions of a sharing group pass on. A session may be run from several threads if its EP allows that.
"""

from .group import Group
from .group import open_group as open  # noqa: A004 - `epbuild.runtime.open`, as modules that open things have it
from .variants import CustomOps, Ep, OpenError, Variant, find_variants

__all__ = ["CustomOps", "Ep", "Group", "OpenError", "Variant", "find_variants", "open"]
