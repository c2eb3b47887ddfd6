"""Events and values as terminal text, JSON and Markdown."""
