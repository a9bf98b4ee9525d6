"""Weights from files and to files, by the names and layouts of the module that they belong to."""
