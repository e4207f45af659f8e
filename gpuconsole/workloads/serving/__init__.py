"""Serving: a model server as a child process, the load on it, and the measurements of both."""
