"""Compilation of session groups and runs of preparations, in separate processes."""
