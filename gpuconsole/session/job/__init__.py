"""A user's own job: what its raw segments mean."""
