"""ONNX files: reading their headers and editing them without loading weights."""
