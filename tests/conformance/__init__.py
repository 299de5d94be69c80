"""One suite per port, that fake and real both pass."""
