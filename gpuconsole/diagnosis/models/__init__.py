"""Analytical models: what a run should cost by arithmetic alone, to be held against what was measured. Pure functions."""
