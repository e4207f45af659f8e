"""The load generator, a separate process: arrivals, prompts, streamed requests and their times."""
