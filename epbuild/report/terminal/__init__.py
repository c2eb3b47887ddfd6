"""Text for people, 80 columns wide."""
