"""Errors, atomic writes, safe paths, digests, units: what every room needs."""
