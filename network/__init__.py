"""What is to be computed: graphs of layers, their operators, and where they come from."""
