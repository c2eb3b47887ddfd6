"""`epbuild decrypt`: write the plain form of an encrypted artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli.options import MACHINE, declare_option, make_application
from epbuild.commands.decrypt import decrypt as write_plain
from epbuild.report.listeners import WaitingRow
from epbuild.report.terminal.screen import print_line
from epbuild.session.events import note_lines

app = make_application()


@app.command(
    exits={
        0: "the plain artifact was written",
        1: "a file cannot be decrypted; nothing was written",
        2: "there is nothing to decrypt, the output exists, or the command line is invalid; nothing was written",
        3: MACHINE,
    }
)
def decrypt(
    artifact: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="Encrypted folder, archive or image.", show_default=False)],
    *,
    output: Annotated[Path, declare_option("--output", "-o", metavar="FOLDER", help="New folder for the plain files.")],
    key_variable: Annotated[
        str, declare_option("--key-variable", metavar="NAME", help="Environment variable with the key, in hex or Base64.")
    ],
) -> int:
    """Write the plain form of an encrypted ARTIFACT, for commands that read or change compiled models.

    Applications do not need this command: epbuild.runtime decrypts files in memory.
    """
    with WaitingRow() as waiting:
        made = write_plain(artifact, output, key_variable, note_lines(waiting))
    for name in made.files:
        print_line(f"decrypted  {made.output / name}")
    return 0
