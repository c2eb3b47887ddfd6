"""Terminal output for users, as wide as the terminal or 80 columns."""
