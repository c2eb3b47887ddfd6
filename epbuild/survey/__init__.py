"""Comparison of a plan with the store and the disk."""
