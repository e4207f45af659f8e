"""Pictures of the main screen as text. `python -m tests.tui.golden --write` makes them again after
an intended change; read the diff."""
