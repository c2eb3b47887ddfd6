"""`epbuild version`: versions of epbuild and of the packages that it uses."""

from __future__ import annotations

from epbuild import __version__
from epbuild.cli.arguments import Json
from epbuild.cli.options import COMMAND_LINE, make_application
from epbuild.report.json.checks import build_version_document
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.screen import print_line

app = make_application()


@app.command(exits={0: "the version was printed", 2: COMMAND_LINE})
def version(*, json: Json = False) -> int:
    """Print the version of epbuild. With --json, also print what a bug report needs."""
    if json:
        print_json(build_version_document())
    else:
        print_line(f"epbuild {__version__}")
    return 0
