"""Reference pages under `docs/reference/`, out of the schema and the catalog."""
