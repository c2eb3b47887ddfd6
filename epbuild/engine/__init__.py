"""Build loop with its scheduler and events, independent of ONNX and of EPs."""
