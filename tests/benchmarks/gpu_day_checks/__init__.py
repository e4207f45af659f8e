"""Checks that need no GPU: for the tests of the runner."""
