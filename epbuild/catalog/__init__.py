"""Data about EPs, session keys and built-in preparations."""
