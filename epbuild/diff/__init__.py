"""Comparison of two artifacts by sizes, facts and bytes."""
