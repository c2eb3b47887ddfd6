"""Report page."""
