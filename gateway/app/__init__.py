"""The composition root: makes a running gateway from a configuration."""
