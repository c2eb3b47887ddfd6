"""Modules that all other packages use: errors, atomic writes, safe paths, digests."""
