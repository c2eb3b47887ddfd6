"""Report as an HTML page."""
