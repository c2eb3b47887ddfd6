"""Planner of the files of an output, before any of them is written."""
