"""Runs guest code where it can do only what it was granted: worker processes without secrets."""
