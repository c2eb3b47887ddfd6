"""Checks of artifacts, before they are stored and after they are published."""
