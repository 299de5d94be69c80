"""Which node works on which partition, and hints between nodes over NATS."""
