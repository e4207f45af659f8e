"""`gpuconsole.watch()` and `%load_ext gpuconsole`: the agent in a process that runs already, and a
client of its session."""
