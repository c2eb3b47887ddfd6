"""Scripts that run inside a toolchain's Python, started by path: the standard library and onnxruntime only.

They keep to syntax that older interpreters read, since a toolchain's Python need not be epbuild's.
"""
