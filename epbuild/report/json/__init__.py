"""JSON documents and events."""
