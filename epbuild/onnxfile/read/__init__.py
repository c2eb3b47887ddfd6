"""Headers of ONNX files, and the places of tensors and contexts in them."""
