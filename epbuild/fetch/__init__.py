"""Remote models, and models inside wheels."""
