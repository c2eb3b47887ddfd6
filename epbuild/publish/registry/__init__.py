"""Pushing images to registries (OCI distribution specification)."""
