"""Plain data that every other room works on: standard library and msgspec only, no I/O, no clock."""
