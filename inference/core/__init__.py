"""What every engine is made of: the problem, the objective, posteriors, devices, and where engines are found."""
