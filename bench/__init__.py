"""Benchmarks, with their mock model server."""
