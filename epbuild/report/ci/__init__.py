"""Report files for CI systems."""
