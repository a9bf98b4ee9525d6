"""The planner: from a network and a cluster to a plan."""
