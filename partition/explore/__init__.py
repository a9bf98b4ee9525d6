"""Ways to train a network on a cluster, compared."""
