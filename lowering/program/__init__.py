"""Programs of devices, assembled from kernels."""
