"""Tests of gateway/app."""
