"""Ways to reach devices: simulated ones, their models, and boards."""
