"""gpuconsole: run a GPU workload, see where its time goes, apply a fix live, and prove that it helped."""

__version__ = "0.1.0"
