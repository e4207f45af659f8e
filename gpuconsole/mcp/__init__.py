"""The interface for agents (MCP): the tools, the server on stdin and stdout, and the socket through
which an agent works on an open console."""
