"""The GEMM engine as gateware."""
