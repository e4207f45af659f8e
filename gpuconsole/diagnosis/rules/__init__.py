"""One file per rule, each with a `RULE`. A new file here is a new rule; nothing is registered anywhere else."""
