"""Trials and their statistics. No I/O, no clock."""
