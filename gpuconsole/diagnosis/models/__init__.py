"""Analytical models: time, memory and FLOPs of a run by arithmetic alone, for comparison with
measurements. Pure functions."""
