"""Behaviour trees that are malformed, oversized, endless or cunning; those in `fine` are only odd."""
