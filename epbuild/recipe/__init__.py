"""Reader of recipes: YAML text to a `Recipe`, and problems with their positions."""
