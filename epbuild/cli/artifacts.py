"""Commands on artifacts: `inspect`, `diff`, `relink` and `merge`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from epbuild import api
from epbuild.cli import arguments
from epbuild.cli.options import COMMAND_LINE, Excludes, UsageError, declare_option, declare_options, make_application
from epbuild.commands.artifacts import diff as compare
from epbuild.commands.artifacts import find_models
from epbuild.commands.artifacts import merge as merged
from epbuild.commands.artifacts import relink as change
from epbuild.core.shown import format_path
from epbuild.onnxfile.edit.packaging import Packaging
from epbuild.report.json.artifacts import build_comparison_document
from epbuild.report.json.documents import print_json
from epbuild.report.markdown import format_markdown
from epbuild.report.terminal.artifacts import print_comparison, print_inspection, print_inspections
from epbuild.report.terminal.screen import print_line

app = make_application()


@app.command(
    exits={
        0: "all models are complete, and all references resolve",
        1: "a model is missing or incomplete, or a reference does not resolve",
        2: COMMAND_LINE,
    }
)
def inspect(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="ONNX files, or folders with ONNX files.", show_default=False)
    ],
    json: arguments.Json = False,
) -> int:
    """Show the EPContext nodes of each FILE with their references and targets, and the CPU fallback nodes.

    For several files or a folder, also show which models share a file, and how many bytes this saves.
    """
    found = api.inspect(*files)
    if json:
        print_json(found.document)
    elif found.several:
        print_inspections(found.document)
    else:
        print_inspection(found.document)
    return 0 if found.sound else 1


_DIFF_RULES = (
    Excludes(("--markdown",), ("--json",), "--markdown and --json cannot be combined"),
)  # fmt: skip


@app.command(
    rules=_DIFF_RULES,
    exits={
        0: "the artifacts are equal, or the recipe accepts the differences",
        1: "the artifacts differ",
        2: "the command line is invalid, or an artifact cannot be read",
    },
)
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The old artifact.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The new artifact.", show_default=False)],
    markdown: Annotated[
        bool, declare_option("--markdown", help="Print GitHub-flavored Markdown, for a comment on a pull request.")
    ] = False,
    json: arguments.Json = False,
) -> int:
    """Compare the artifacts A and B: names, targets, toolchains, settings, weights, graphs and sizes.

    An artifact is a folder, an archive (.zip, .tar.zst), an OCI image layout, a manifest, or an EPContext model.
    """
    found = compare(a, b, partial(typer.echo, err=True))  # Standard output contains only the result.
    if json:
        print_json(build_comparison_document(str(a), str(b), found))
    elif markdown:
        sys.stdout.write(format_markdown(str(a), str(b), found))
    else:
        print_comparison(found)
    return 1 if found.differences and not found.accepted else 0


_RELINK_RULES = (
    Excludes(
        ("--embed",),
        ("--extract", "--binary"),
        "--embed writes no separate file, so it cannot be combined with --extract or --binary",
    ),
)


@app.command(
    rules=_RELINK_RULES,
    exits={
        0: "the models were changed",
        1: "a model is missing or incomplete, or the result is not equivalent; nothing was changed",
        2: "the change is refused, or the command line is invalid; nothing was changed",
    },
)
def relink(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="Compiled models. A folder stands for all models in it.", show_default=False),
    ],
    embed: Annotated[bool, declare_option("--embed", help="Embed the context binary in the model.")] = False,
    extract: Annotated[
        bool,
        declare_option("--extract", help="Write the embedded context to a separate file, named by --binary or after the model."),
    ] = False,
    binary: Annotated[
        str | None,
        declare_option(
            "--binary",
            metavar="NAME.bin",
            help="New name of the context binary. It may have subfolders, as in contexts/NAME.bin.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        declare_option("--output", "-o", metavar="PATH", help="Folder or new .onnx file to write the result to."),
    ] = None,
    in_place: Annotated[bool, declare_option("--in-place", help="Change the models in place.")] = False,
) -> int:
    """Embed, extract, rename or move the context binary of each MODEL, without compiling again.

    Models that share a context binary must be changed together. The result is read back and compared before any file is replaced. With
    --in-place, the old binary is removed once no model in the folder refers to it.
    """
    if not (embed or extract or binary):
        raise UsageError("choose what to change: --embed, --extract or --binary NAME.bin")
    if in_place == (output is not None):
        raise UsageError("choose where to write the result: either -o OUT or --in-place")
    packaging: Packaging = "embed" if embed else "extract" if extract else "rename"
    named = find_models(models)
    if output is not None and output.suffix == ".onnx" and len(named) > 1:
        raise UsageError(f"-o must name a folder, because there are {len(named)} models")
    made = change(named, packaging, binary, output)
    for label, paths in (("wrote", made.models), ("binary", made.binaries), ("removed", made.removed)):
        for path in paths:
            print_line(f"{label:<9}{format_path(path)}")
    for path in made.kept:
        print_line(
            f"kept     {format_path(path)}: {', '.join(map(format_path, made.unreadable))} cannot be read and may refer to it"
        )
    return 0


_MERGE_EXITS = {
    0: "the merged model was written",
    1: "a model is missing or incomplete",
    2: "the models cannot be merged, or the command line is invalid; nothing was written",
}


@app.command(exits=_MERGE_EXITS)
def merge(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL MODEL...", help="Compiled models, in the order in which they run.", show_default=False),
    ],
    *,
    output: Annotated[Path, declare_option("--output", "-o", metavar="OUT.onnx", help="File to write the merged model to.")],
    connections: Annotated[
        list[str],
        declare_options(
            "--connect",
            "-c",
            metavar="A.OUTPUT=B.INPUT",
            help="Connect an output of one model to an input of a later model. Write models as file stems, or as numbers from 1.",
        ),
    ],
    prefixes: Annotated[
        list[str],
        declare_options(
            "--prefix",
            "-p",
            metavar="PREFIX",
            help="Prefix for the names in a model. Pass one for each model; '' means no prefix.",
        ),
    ],
) -> int:
    """Merge compiled models into one model with the EPContext nodes of all of them.

    Without --connect, outputs are connected to inputs of the same name in later models. Inputs with the same name become one
    input. All other inputs and outputs remain. Context binaries are copied next to OUT.onnx. The command fails if an EP could not
    load the merged model, or would compute incorrect results.
    """
    if len(models) < 2:
        raise UsageError("name at least two models")
    if prefixes and len(prefixes) != len(models):
        raise UsageError(f"pass --prefix once for each of the {len(models)} models ('' for none)")
    made = merged(models, prefixes, connections, output)
    print_line(f"wrote    {format_path(made.model)}")
    for path in made.files:
        print_line(f"file     {format_path(path)}")
    for item in made.connections:
        print_line(f"feeds    {item.output} of {models[item.source]} -> {item.input} of {models[item.target]}")
    if not made.connections:
        print_line("feeds    nothing: no output has the same name as an input of a later model")
    for name in made.shared_inputs:
        print_line(f"shared   input {name}")
    for note in made.notes:
        print_line(f"note     {note}")
    return 0
