"""Commands: one function each, which returns a value and prints nothing."""
