"""The figures of the analytical models: each prediction beside its measurement."""
