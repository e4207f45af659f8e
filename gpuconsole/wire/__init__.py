"""The one event format (JSON lines): what children send, what a recording holds, what a fixture is."""
