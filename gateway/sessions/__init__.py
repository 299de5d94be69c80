"""Accepts messages durably, works on each session in order, and brings answers out; nothing is lost."""
