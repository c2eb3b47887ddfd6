"""Emission of outputs: written atomically, pushed to registries, and removed."""
