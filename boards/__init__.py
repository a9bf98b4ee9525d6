"""Boards and clusters: one YAML file each, and the schema that reads them."""
