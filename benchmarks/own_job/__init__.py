"""Benchmarks of `gpuconsole run -- COMMAND`."""
