"""The examples for plugin authors."""
