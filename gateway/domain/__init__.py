"""What things are called: values, errors and ports. Knows the standard library alone."""
