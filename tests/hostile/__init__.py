"""Input that is malformed, oversized, endless or cunning."""
