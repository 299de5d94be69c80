"""Behaviour trees."""
