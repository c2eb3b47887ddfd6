"""Images pushed to registries by the OCI distribution specification."""
