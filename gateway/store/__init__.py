"""What is kept: inbox, runs, conversation trees, sessions and outbox, in SQLite or in memory."""
