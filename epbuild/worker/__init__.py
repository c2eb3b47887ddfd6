"""Scripts that run inside a toolchain: the standard library and onnxruntime only.

The scripts are started by path. They use only syntax that older interpreters support, as a toolchain may have an older Python than epbuild.
"""
