"""Is a watched job the same job? See `__main__`."""
