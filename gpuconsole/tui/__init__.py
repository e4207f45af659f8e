"""The full-screen console: the only folder that imports Textual."""

import os

# Textual draws at its next frame. At 60 frames a second this wait is most of the latency of a key: p50 is 40 ms, and 30 ms at 240 frames.
# Textual does not draw more often: it skips a frame in which nothing changed. It reads the variable once, and the jobs of the user do not get it.
if "TEXTUAL_FPS" not in os.environ:
    os.environ["TEXTUAL_FPS"] = "240"
    import textual.constants  # noqa: F401

    del os.environ["TEXTUAL_FPS"]
