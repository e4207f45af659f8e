"""One file per screen; pages of text share a file."""
