"""Merging of compiled models into one, with the onnx package."""
