"""config.toml becomes one frozen GatewayConfig; the only reader of the environment and of secrets."""
