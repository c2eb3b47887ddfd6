"""Outputs put in place whole, pushed, and taken away again."""
