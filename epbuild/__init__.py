"""epbuild: the build system for ONNX Runtime EPContext artifacts."""

__version__ = "0.1.0"
