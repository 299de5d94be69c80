"""Packs the context of a model call, finds earlier facts and turns, and extracts facts."""
