"""Serving: a model server as a child, the load that is put on it, and what both tell."""
