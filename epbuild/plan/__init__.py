"""Planner: turns a recipe into ordered steps, outputs and key documents."""
