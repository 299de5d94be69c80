"""Behaviour trees: reader, loader, lint, layout and engine. They know nothing of agents."""
