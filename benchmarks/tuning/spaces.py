"""The knobs that each search may change, by scenario: the knobs that a user who does not know the
cause would put into a grid."""

from __future__ import annotations

from gpuconsole.model.knobs.catalogue import Value

Space = dict[str, list[Value]]

SPACES: dict[str, Space] = {
    "data-starved": {
        "num_workers": [0, 1, 2, 4, 6],
        "prefetch_factor": [2, 8],
        "optim": ["adamw", "adamw_fused"],
    },
    "train-vision": {
        "num_workers": [0, 1, 2],
        "prefetch_factor": [2, 8],
        "optim": ["adamw", "adamw_fused"],
        "channels_last": [False, True],
    },
    "chatty-logging": {
        "log_every": [1, 5, 20],
        "log_gradients": [True, False],
        "optim": ["adamw", "adamw_fused"],
        "num_threads": [0, 2],
    },
    "slow-checkpoint": {
        "save_every": [2, 10, 40],
        "optim": ["adamw", "adamw_fused"],
        "attention": ["sdpa", "math"],
        "num_threads": [0, 2],
    },
    "optimizer-heavy": {
        "optim": ["adamw", "adamw_foreach", "adamw_fused"],
        "attention": ["sdpa", "math"],
        "num_threads": [0, 2],
        "log_every": [10, 20],
    },
    "naive-attention": {
        "attention": ["math", "sdpa"],
        "optim": ["adamw", "adamw_fused"],
        "gradient_checkpointing": [True, False],
        "num_threads": [0, 2],
    },
}
