"""Values, errors and ports. Imports only the standard library."""
