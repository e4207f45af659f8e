"""The analytical models beside their measurement, over several scenarios."""
