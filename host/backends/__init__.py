"""Where a network runs: one interface, a module for each place."""
