"""Units: how layers become kernels, their layouts, and the tensors of a micro-batch."""
