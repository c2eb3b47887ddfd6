"""First recipes: from a few models and answers to a text that builds."""
