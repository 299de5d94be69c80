"""The machine: clock, ids, files, archives, the log, signals and the service manager."""
