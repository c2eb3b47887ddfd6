"""Reports: what the builds of a recipe came to, and what changed since others."""
