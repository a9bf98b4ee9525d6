"""From a network to the programs of cores."""
