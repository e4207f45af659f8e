"""The checks, by area. Every file here is read; see `benchmarks/gpu_day/check.py`."""
