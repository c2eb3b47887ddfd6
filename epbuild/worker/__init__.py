"""Scripts that run inside a toolchain: the standard library and onnxruntime only.

They are started by path, and keep to syntax that older interpreters read, since a toolchain's Python need not be epbuild's.
"""
