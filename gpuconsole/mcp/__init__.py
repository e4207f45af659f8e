"""The interface for agents (MCP): tools on a SessionApi, the server on stdin and stdout, and the socket of an open console."""
