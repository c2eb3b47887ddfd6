"""ONNX files as bytes and headers, without their weights."""
