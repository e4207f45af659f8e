"""Zones: the few widgets that the screens are made of."""
