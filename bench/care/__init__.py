"""Small PyTorch modules that ask for care: an importer or a compiler easily gets each wrong."""
