"""Tests of the room that speaks MCP."""
