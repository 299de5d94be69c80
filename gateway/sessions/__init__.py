"""Accepts messages durably, runs the turns of each session in order, and delivers the answers."""
