"""Rules: what happens in a run, and what is done about it."""
