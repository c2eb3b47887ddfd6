"""Options of a target for the sessions that run its models."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from epbuild.plan.target import PlannedEp, PlannedTarget

_SHARE = "ep.share_ep_contexts"
WRITES_FILES = frozenset(
    {
        "session.collect_node_memory_stats_to_file",
        "session.debug_layout_transformation",
        "session.enable_profiling",
        "session.optimized_model_filepath",
    }
)
"""Session options with which ONNX Runtime rejects a package, regardless of their values (measured)."""


class Inference(Struct, frozen=True):
    """Options of a target for the sessions that run its models."""

    session_options: Mapping[str, str]
    provider_options: Mapping[str, str]
    left_out: Mapping[str, str]
    """Options that a package cannot contain, each with the reason as a clause."""


def select_inference_options(
    session_options: Mapping[str, str],
    provider_options: Mapping[str, str],
    *,
    share: bool,
    files: Collection[str] = (),
    only_compiling: Collection[str] = (),
) -> Inference:
    """Return the options of a target that go into a package.

    With `share`, the models share weights. `files` has the options that name files, and `only_compiling` the EP's options that only a
    compile reads. As in epbuild's runtime, a session gets all other options of the compile, and `ep.share_ep_contexts` with `share`.
    """
    left_out = {
        option: "ONNX Runtime rejects packages with options that write files"
        for option in session_options
        if option in WRITES_FILES
    }
    named = {option for options in (session_options, provider_options) for option in options if option in files}
    left_out |= dict.fromkeys(sorted(named), "its value is a file on the machine that compiled the model")
    left_out |= dict.fromkeys(sorted({*only_compiling} & provider_options.keys()), "it only affects compiling")
    kept = {option: value for option, value in session_options.items() if option not in left_out}
    return Inference(
        session_options={**kept, **({_SHARE: "1"} if share else {})},
        provider_options={option: value for option, value in provider_options.items() if option not in left_out},
        left_out=left_out,
    )


def build_inference(target: PlannedTarget, ep: PlannedEp, *, share: bool) -> Inference:
    """Return the options that a session with `ep` needs to run the models of a target. With `share`, the models share weights."""
    files = [*target.session_files, *ep.files]
    return select_inference_options(
        target.session_options, ep.provider_options, share=share, files=files, only_compiling=ep.only_compiling
    )
