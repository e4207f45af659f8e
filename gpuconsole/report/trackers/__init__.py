"""Copies of a session's figures in experiment trackers: TensorBoard, Weights & Biases, MLflow,
OpenTelemetry (`--log-to`)."""
