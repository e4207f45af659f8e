"""What runs inside a worker process. The console's own process never imports this."""
