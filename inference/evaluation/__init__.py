"""Held-out scores, topics, ratings and votes of one fit."""
