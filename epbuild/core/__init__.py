"""Modules that all rooms use: errors, atomic writes, safe paths, digests, units."""
