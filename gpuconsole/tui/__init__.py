"""The full-screen console: the only room that imports Textual."""

import os

# Textual waits for its next frame before it draws. At its usual 60 a second that is most of what a key waits for its screen
# (p50 40 ms, at 240 it is 30); nothing is drawn more often, since a frame in which nothing changed is none.
os.environ.setdefault("TEXTUAL_FPS", "240")
