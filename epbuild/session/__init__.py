"""One build session: what a command opens, surveys, builds and emits."""
