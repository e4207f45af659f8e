"""The user's own training job: plain data."""
