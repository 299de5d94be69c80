"""Providers: wires, replies, retries, and the demo model."""
