"""Calibration over data drawn from the prior, and reference posteriors."""
