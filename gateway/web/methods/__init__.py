"""The JSON-RPC methods: parameters in, one question to the core, a plain value out."""
