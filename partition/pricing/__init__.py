"""What a plan costs on the machine that is built: programs, timed by the cycle model."""
