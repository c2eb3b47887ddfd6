"""The process: hand over to the commands, and turn what they raise into an exit code."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `epbuild` with the arguments of the process, and exit."""
    from epbuild.cli.app import execute

    sys.exit(execute(sys.argv[1:]))


if __name__ == "__main__":
    main()
