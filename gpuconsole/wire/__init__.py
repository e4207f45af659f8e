"""The only event format (JSON lines): for messages of child processes, recordings and test
fixtures."""
