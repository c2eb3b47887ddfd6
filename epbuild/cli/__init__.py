"""One command per file: arguments in, a call, an exit code out."""
