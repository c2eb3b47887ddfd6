"""Types of actions: prepare, compile, copy, verify and measure."""
