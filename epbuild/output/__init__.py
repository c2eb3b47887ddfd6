"""Planner of an output's files, which runs before any file is written."""
