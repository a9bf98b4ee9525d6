"""Files and programs of other tools, read as graphs; one format a module."""
