"""Software that runs on the host: command line, runtime, backends."""
