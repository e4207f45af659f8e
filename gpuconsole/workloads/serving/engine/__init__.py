"""The embedded model server: a small GPT, batched iteration by iteration, behind the OpenAI API and vLLM's metric names."""
