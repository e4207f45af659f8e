"""The animated picture of the README: the recorded session of `gpuconsole --demo`, as one SVG that
needs no script."""

from __future__ import annotations

import re
import time
from importlib import resources
from pathlib import Path

from shots import HERE, ONE, TITLE, Cells, until, write_png

from gpuconsole.engine.recording import DEMO, Replay
from gpuconsole.report.screen.answer import narrate
from gpuconsole.session import facts
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.widgets.bars import KeyBar

FRAMES_S = 0.25
MAX_FRAMES = 16
LAST_S = 5.0
DEMO_TITLE = f"{TITLE} --demo: a recorded session"


async def demo() -> list[Path]:
    """The recording at twice its speed: a frame when something happens. The PNG shows its end."""
    with resources.as_file(DEMO) as path:
        replay = Replay(path, 2.0)
    KeyBar.demo = True
    app = ConsoleApp(replay)
    frames: list[tuple[float, Cells]] = []
    happened: set[object] = set()

    def moment() -> object:
        """What is worth a frame: a step of the session, a block of the trial, some seconds of a
        run."""
        view = replay.view()
        blocks = view.trials[-1].blocks // 2 if view.trials else 0
        return (
            narrate(view)[0],
            len(view.runs),
            blocks,
            bool(facts.firing(view.run)),
            int(view.running_s // 6) if view.run else -1,
        )

    async with app.run_test(size=ONE["120x40"]) as pilot:
        await until(lambda: replay.view().runs, 20)
        begun = time.monotonic()
        while not replay.ended:
            await pilot.pause(FRAMES_S)
            if (now := moment()) not in happened and len(frames) < MAX_FRAMES:
                happened.add(now)
                frames.append((time.monotonic() - begun, Cells.of(app, simplify=True)))
        frames.append((time.monotonic() - begun, Cells.of(app, simplify=True)))
        await pilot.press("q")
    KeyBar.demo = False
    moving, still = HERE / "demo.svg", HERE / "demo.png"
    pictures = [(t, cells.svg(DEMO_TITLE)) for t, cells in frames]
    moving.write_text(animated(pictures))
    write_png(still, pictures[-1][1], DEMO_TITLE)
    return [moving, still]


def animated(frames: list[tuple[float, str]]) -> str:
    """One SVG that shows the frames one after the other, each from its second on, the last one for
    `LAST_S`. It needs no script."""
    whole = frames[-1][0] + LAST_S
    head = re.match(r"<svg[^>]*>", frames[0][1])
    assert head is not None
    styles, bodies = [], []
    for n, (start, frame) in enumerate(frames):
        first = 0.0 if n == 0 else start
        end = frames[n + 1][0] if n + 1 < len(frames) else whole
        a, b = 100 * first / whole, 100 * end / whole
        steps = [
            f"{a:.2f}% {{visibility:visible}}",
            *([f"{b:.2f}% {{visibility:hidden}}"] if b < 100 else []),
        ]
        steps = [*(["0% {visibility:hidden}"] if a > 0 else []), *steps]
        styles.append(
            f"@keyframes f{n} {{{' '.join(steps)}}} .f{n} {{visibility:hidden; animation: f{n}"
            f" {whole:.1f}s step-end infinite}}"
        )
        body = frame[
            frame.index(head[0]) + len(head[0])
            if n == 0
            else frame.index(">", frame.index("<svg")) + 1 : frame.rindex("</svg>")
        ]
        body = re.sub(
            r"<clipPath.*?</clipPath>| clip-path=\"url\([^\"]*\)\"", "", body, flags=re.DOTALL
        )
        bodies.append(f'<g class="f{n}">{body}</g>')
    return f"{head[0]}<style>{' '.join(styles)}</style>{''.join(bodies)}</svg>"
