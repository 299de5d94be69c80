"""The front door for programs and people: HTTP, WebSocket JSON-RPC, limits and auth."""
