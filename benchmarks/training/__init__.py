"""Our training loop compared with plain references of the same model."""

LOSS_AT = 20
"""The step, counted from 0, whose loss shows that all contestants do the same work."""
