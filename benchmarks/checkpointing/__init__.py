"""What gradient checkpointing saves and costs, measured and by the models."""
