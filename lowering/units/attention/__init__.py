"""Units of attention: softmax, products of two activations, and what moves their operands."""
