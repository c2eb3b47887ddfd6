"""Built-in preparations: scripts for a toolchain's Python.

The scripts are started by path, and never imported. Their bytes are part of the keys of preparations. Even a changed comment causes users
to prepare and compile again.
"""
