"""Options of a target that the sessions which run its models need."""

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
"""Session options with which ONNX Runtime does not open a package, whatever their values (measured)."""


class Inference(Struct, frozen=True):
    """The options of a target that the sessions which run its models need."""

    session_options: Mapping[str, str]
    provider_options: Mapping[str, str]
    left_out: Mapping[str, str]
    """The options that a package cannot hold, and why, as a clause."""


def for_inference(
    session_options: Mapping[str, str],
    provider_options: Mapping[str, str],
    *,
    share: bool,
    files: Collection[str] = (),
    only_compiling: Collection[str] = (),
) -> Inference:
    """What of a target's options goes into a package. `share`: its models share weights; `files`: the options that name files;
    `only_compiling`: those of the EP that no session reads which runs the models.

    As in epbuild's runtime, a session gets the other options that the models were compiled with, and `ep.share_ep_contexts` where they
    share.
    """
    left_out = {
        option: "ONNX Runtime opens no package in which it would write files"
        for option in session_options
        if option in WRITES_FILES
    }
    named = {option for options in (session_options, provider_options) for option in options if option in files}
    left_out |= dict.fromkeys(sorted(named), "it names a file of the machine that compiled")
    left_out |= dict.fromkeys(sorted({*only_compiling} & provider_options.keys()), "it is only for compiling")
    kept = {option: value for option, value in session_options.items() if option not in left_out}
    return Inference(
        session_options={**kept, **({_SHARE: "1"} if share else {})},
        provider_options={option: value for option, value in provider_options.items() if option not in left_out},
        left_out=left_out,
    )


def inference_of(target: PlannedTarget, ep: PlannedEp, *, share: bool) -> Inference:
    """The options that a session with `ep` needs to run what was compiled for the target; `share`: its models share weights."""
    files = [*target.session_files, *ep.files]
    return for_inference(target.session_options, ep.provider_options, share=share, files=files, only_compiling=ep.only_compiling)
