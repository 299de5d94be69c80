"""What the gateway offers to programs, declared once: methods, routes, values on the wire, errors."""
