"""The build loop: scheduler, events, capacity. It knows no ONNX and no EP."""
