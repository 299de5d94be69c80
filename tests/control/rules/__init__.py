"""Rules: texts, conditions, and what comes of them."""
