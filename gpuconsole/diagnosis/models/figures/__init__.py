"""The figures of the analytical models: each prediction with its measurement."""
