"""Behaviour trees: read, checked, formatted and run; nothing here knows what an agent is."""
