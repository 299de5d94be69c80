"""Tests: they mirror gateway/ file for file; scenarios/ walks the whole way of a message."""

import sys

# Hundreds of processes import the gateway, and every worker the tests: compiled once.
sys.dont_write_bytecode = False
