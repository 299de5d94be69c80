"""The command line: one file for each family of verbs. It parses arguments, calls the gateway and prints results."""
