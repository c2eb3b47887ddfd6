"""The opening of published models in an application.

Of a group, it is the variant that fits this machine, with the options that it was compiled with:

    with epbuild.runtime.open("dist/classifier") as group:
        probabilities = group["classifier"].run(None, {"image": image})

It needs Python 3.10, the standard library and onnxruntime, and nothing else of epbuild: this folder can be copied into an application.
`docs/runtime.md` describes how the variant is chosen.

Threads: groups may be opened and closed from any thread; what plugin EPs keep for the whole process (registrations, and the contexts that
the sessions of a sharing group hand on) is changed by one of them at a time. A session may be run from several threads, as far as its EP
allows.
"""

from .group import Group
from .group import open_group as open  # noqa: A004 - `epbuild.runtime.open`, as modules that open things have it
from .variants import CustomOps, Ep, OpenError, Variant, find_variants

__all__ = ["CustomOps", "Ep", "Group", "OpenError", "Variant", "find_variants", "open"]
