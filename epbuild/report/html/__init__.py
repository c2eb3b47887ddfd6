"""Renderer of a report as an HTML page."""
