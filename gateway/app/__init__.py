"""The composition root: a configuration in, a running gateway out."""
