"""One file per rule, each with one class. A new file here is a new rule; nothing is registered
anywhere else."""
