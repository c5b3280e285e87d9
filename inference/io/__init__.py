"""Fits, states and draws on disk and as ArviZ objects."""
