"""Memory and time of gradient checkpointing, measured and predicted."""
