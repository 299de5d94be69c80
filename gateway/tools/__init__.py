"""Which tools an agent has, whether it may use this one, whether the arguments are valid; results are data."""
