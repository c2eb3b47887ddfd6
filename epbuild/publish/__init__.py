"""Outputs: atomic emission, push to registries, and removal."""
