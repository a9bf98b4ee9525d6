"""The commands, as functions that the command line and Python call."""
