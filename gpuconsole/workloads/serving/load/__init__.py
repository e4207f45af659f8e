"""The load generator: arrivals, prompts, streamed requests and their times. A process of its own."""
