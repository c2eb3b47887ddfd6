"""Copies of ONNX files in which some bytes are replaced."""
