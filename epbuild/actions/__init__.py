"""Types of action whose results the store keeps: compile, prepare, verify."""
