"""Tests of gateway/cli."""
