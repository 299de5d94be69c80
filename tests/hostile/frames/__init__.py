"""WebSocket frames and JSON as nobody decent would send them."""
