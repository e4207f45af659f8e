"""The full-screen console: the only room that imports Textual."""
