"""What surrounds blocks in their testbenches: memories, peers, wires."""
