"""The store: inbox, runs, conversation trees, sessions, facts, ledger and outbox, in SQLite or
SurrealDB."""
