"""The store: SQLite under faults."""
