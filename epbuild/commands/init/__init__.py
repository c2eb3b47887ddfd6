"""First recipes, from models and answers of users."""
