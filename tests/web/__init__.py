"""The front door, alone."""
