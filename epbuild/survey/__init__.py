"""Comparison of a plan with the store and the disk: which steps are out of date, and why."""
