"""The way out over HTTP, guarded and not."""
