"""Archives and images. Each format has a module that writes and reads it."""
