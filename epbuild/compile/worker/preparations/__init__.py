"""Built-in preparations: scripts for a toolchain's Python.

They are started by path, and never imported.
"""
