"""Tests: they mirror gateway/ file for file; scenarios/ walks the whole way of a message."""
