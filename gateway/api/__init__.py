"""The interface for programs, declared once: methods, routes, values on the wire, errors."""
