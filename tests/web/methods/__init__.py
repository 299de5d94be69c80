"""The JSON-RPC methods, called as a connection calls them."""
