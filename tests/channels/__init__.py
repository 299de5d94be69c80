"""Tests of gateway/channels."""
