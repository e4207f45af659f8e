"""The part of gpuconsole that runs inside a training process: it measures steps, answers commands
between steps, and reports.

The agent needs the standard library only; it imports torch where a function needs it. Imports
within the package are relative, so that the folder also works as a copy, under another name, in an
environment where gpuconsole is not installed.
"""
