"""The frontend that reads ONNX models as graphs."""
