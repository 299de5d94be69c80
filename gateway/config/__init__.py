"""Reads config.toml into one frozen GatewayConfig; the only room that reads the environment and secrets."""
