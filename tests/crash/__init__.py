"""Kills the gateway at every stage of a message's way, and counts what became of the messages."""
