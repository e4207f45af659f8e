"""Training scripts with one known fault each, as users write them, for a GPU: the labelled cases of `benchmarks.own_job.gpu_cases`."""
