"""One fake per port."""
