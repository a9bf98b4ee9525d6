"""From a network and a cluster to a plan."""
