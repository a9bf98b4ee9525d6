"""What the commands do, as functions that the command line and Python call."""
