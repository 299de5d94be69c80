"""The command line: one file a verb family; parses and calls, decides nothing."""
