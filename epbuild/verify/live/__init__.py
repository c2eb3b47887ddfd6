"""Live checks: load artifacts and run them against their sources."""
