"""The build folder and its parts."""
