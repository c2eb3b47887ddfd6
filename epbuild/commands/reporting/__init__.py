"""Reports about the builds of a recipe, and changes since other builds."""
