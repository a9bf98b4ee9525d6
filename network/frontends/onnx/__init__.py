"""ONNX models, read as graphs."""
