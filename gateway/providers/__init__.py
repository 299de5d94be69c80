"""Providers of models: bytes of two wires in, the domain's replies out; and the demo model."""
