"""Archives and images, a module for each format, that writes it and reads it."""
