"""Pure drawing: numbers in, cells out. Imports neither textual nor rich."""
