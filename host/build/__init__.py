"""The build folder, and what it consists of."""
