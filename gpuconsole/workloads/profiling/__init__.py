"""The profiler window: torch.profiler over a few steps, and what its trace says."""
