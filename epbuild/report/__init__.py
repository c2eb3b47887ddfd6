"""Formatters of events and values as terminal text, JSON, Markdown and HTML."""
