"""The host's side: command line, runtime, backends."""
