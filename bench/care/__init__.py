"""Small PyTorch modules that need care: importers and compilers easily get each of them wrong."""
