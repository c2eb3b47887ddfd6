"""Reader that converts YAML text to a `Recipe`, and reports problems."""
