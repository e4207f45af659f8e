"""The full-screen console: the only folder that imports Textual."""

import os

from gpuconsole.engine.children.environment import OF_THE_CONSOLE

# Textual draws at its next frame. At 60 frames a second this wait is most of the latency of a key:
# p50 is 40 ms, and 30 ms at 240 frames. Textual does not draw more often: it skips a frame in which
# nothing changed.
for _name, _value in OF_THE_CONSOLE.items():
    os.environ.setdefault(_name, _value)
