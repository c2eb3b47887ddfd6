"""Generator of the reference pages under `docs/reference/`."""
