"""From a recipe to an ordered plan: steps, outputs and key documents."""
