"""Public clients, servers and validators, tried against a gateway that runs; see `run`."""
