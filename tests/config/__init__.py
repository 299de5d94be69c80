"""Tests of gateway/config."""
