"""What every engine is made of: the problem, the objective, posteriors, options and devices."""
