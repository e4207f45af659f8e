"""The embedded model server: a small GPT with continuous batching, the OpenAI API and vLLM's metric
names."""
