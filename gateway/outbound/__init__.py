"""Outbound HTTP: a client for the gateway's own calls and a guarded client for plugins."""
