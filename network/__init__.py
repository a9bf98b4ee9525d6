"""Networks: graphs of layers, their operators, and the frontends that read them."""
