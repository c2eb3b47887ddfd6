"""Reports: results of the builds of a recipe, and changes since other builds."""
