"""Copies of ONNX files with some bytes replaced."""
