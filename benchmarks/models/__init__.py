"""The analytical models compared with measurement, over several scenarios."""
