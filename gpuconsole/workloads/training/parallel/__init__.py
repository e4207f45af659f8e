"""How training is spread over processes: replicated, sharded, or with each layer's matrices split."""
