"""The labelled benchmark of the diagnosis: real workloads with one known cause each, healthy ones and decoys among them."""
