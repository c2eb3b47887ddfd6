"""Action types whose results the store keeps: prepare, compile, verify."""
