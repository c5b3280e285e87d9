"""Auxiliary variables eliminated in closed form, and the passes over rows of data they need."""
