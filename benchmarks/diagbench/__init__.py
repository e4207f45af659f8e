"""The labelled benchmark of the diagnosis: real workloads with one known cause each, healthy
workloads and decoys."""
