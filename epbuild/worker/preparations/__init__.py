"""Built-in preparations: scripts for a toolchain's Python.

They are started by path, and never imported. Their bytes are part of the keys of preparations: a change of a comment alone makes users
prepare and compile again.
"""
