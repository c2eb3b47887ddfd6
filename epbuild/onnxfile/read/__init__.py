"""Headers of ONNX files, and positions of tensors and contexts in them."""
