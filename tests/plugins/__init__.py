"""The bundled plugins, each with the cases that are recorded beside it."""
