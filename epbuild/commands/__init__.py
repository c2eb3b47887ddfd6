"""Commands: one function each, which returns a value and does not print."""
