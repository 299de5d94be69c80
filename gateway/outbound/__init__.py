"""The way out over HTTP: for the gateway's own calls, and a guarded one for what plugins ask."""
