"""Borders of a training step: where torch's functions begin and end, seen without a change of torch or of the program.

`table` names the functions, `monitor` sees them by sys.monitoring (Python 3.12 and newer), `older` sees a few of them on Python 3.11.
"""
