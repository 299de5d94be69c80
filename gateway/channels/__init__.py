"""Channels: hosts adapters, which translate and never see a credential."""
