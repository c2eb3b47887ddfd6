"""Runtime library that opens emitted models in an application.

A variant is a group of models that was compiled for one target. This library selects the variant that fits this machine, and opens it
with the options that it was compiled with:

    with epbuild.runtime.open("dist/classifier") as group:
        probabilities = group["classifier"].run(None, {"image": image})

It requires only onnxruntime, Python 3.10 or later and, for encrypted files, the package cryptography. It uses no other part of epbuild, so
this folder can be copied into an application.
`docs/guides/runtime.md` describes how the variant is selected.

Threads: groups may be opened and closed from any thread. A lock guards the state that plugin EPs keep for the whole process:
registrations, and the contexts that the sessions of a group share. A session may run in several threads if its EP supports this.
"""

from .group import Group
from .group import open_group as open  # noqa: A004 - `epbuild.runtime.open` follows modules such as `gzip`
from .variants import CustomOps, Ep, OpenError, Variant, find_variants

__all__ = ["CustomOps", "Ep", "Group", "OpenError", "Variant", "find_variants", "open"]
