"""What leaves the console: snapshots and plain-text reports."""
