"""Ways to distribute training over processes: replicated, sharded, or with split matrices in each layer."""
