"""Figures of the report. Each function returns figures, possibly none."""
