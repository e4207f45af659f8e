"""The profiler window: torch.profiler over a few steps, and the analysis of its trace."""
