"""Terminal output for users, 80 columns wide."""
