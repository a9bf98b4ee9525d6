"""Functions of elements as short programs of the vector engine, forward and backward."""
