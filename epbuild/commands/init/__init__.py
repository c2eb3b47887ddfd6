"""First recipes: a recipe that builds, from a few models and answers."""
