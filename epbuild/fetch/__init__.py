"""Fetching of remote models, and of models inside wheels."""
