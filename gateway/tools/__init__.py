"""Tools: which ones an agent has, whether a call is allowed and valid; results are data."""
