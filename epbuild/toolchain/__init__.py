"""Environments made by uv, their fingerprints, and the lock file."""
