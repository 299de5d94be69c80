"""Addresses that try to lead where nothing was granted."""
