"""Markdown for comments and summaries."""
