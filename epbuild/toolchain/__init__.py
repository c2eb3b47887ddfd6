"""Environments provisioned by uv, their fingerprints, and the lock file."""
