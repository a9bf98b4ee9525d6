"""What a machine needs, and files to begin with."""
