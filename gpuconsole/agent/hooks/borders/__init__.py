"""Borders of a training step: where torch's functions begin and end, seen without a change of torch
or of the program.

`border` names the functions and knows which calls are open, `monitor` sees them by sys.monitoring
(Python 3.12 and newer), `older` sees a few of them on Python 3.11.
"""
