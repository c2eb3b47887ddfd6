"""From YAML text to a `Recipe`, each mistake with its place."""
