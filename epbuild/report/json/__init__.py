"""JSON documents and event lines."""
