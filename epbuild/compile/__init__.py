"""Session groups and preparations, compiled in a fresh process each."""
