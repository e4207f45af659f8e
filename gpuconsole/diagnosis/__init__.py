"""From measurements to named causes. No I/O, no clock: everything works on model objects, so it can
be re-run on a snapshot."""
