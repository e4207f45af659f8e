"""Hooks for training loops that are not ours: they record what a program does, and change it where
the console asks for it.

See docs/own-job-internals.md for each hook.
"""
