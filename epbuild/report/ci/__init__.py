"""Files that CI systems read."""
