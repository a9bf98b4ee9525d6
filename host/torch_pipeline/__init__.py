"""Networks on clusters of GPUs or processors in PyTorch: times of layers, and pipelines."""
