"""One output: its layout and every file with its identity, before it exists."""
