"""The driver between Textual and the terminal: it sends only the cells of an update that differ."""
