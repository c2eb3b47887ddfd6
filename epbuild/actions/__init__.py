"""Action types whose results the store keeps: prepare, compile, copy, verify and measure."""
