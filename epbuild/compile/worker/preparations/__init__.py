"""Built-in preparations: scripts that run in a step's toolchain, started by path; never import them."""
