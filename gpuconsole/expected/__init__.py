"""What a scenario should show on a card, by arithmetic alone: memory, time of a step by part, and whether that is what it teaches."""
