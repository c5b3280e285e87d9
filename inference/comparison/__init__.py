"""Engines compared with a reference posterior."""
