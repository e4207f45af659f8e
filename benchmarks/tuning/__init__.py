"""The tuner compared with exhaustive search, random search and Optuna's TPE on the same knobs."""
