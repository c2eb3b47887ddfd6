"""Merging of compiled models into one model, with the onnx package."""
