"""Live checks: artifacts loaded, and run against their sources."""
