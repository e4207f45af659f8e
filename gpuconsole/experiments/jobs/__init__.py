"""Experiments that need more than one start of a user's job."""
