"""Guests that try to get out, to fill up, to hang or to crash whatever runs them."""
