"""Checks that need a person, another machine or a right that a container lacks."""

from __future__ import annotations

from benchmarks.gpu_day.check import add_by_hand

LIST = {
    "mig": (
        "Slices as devices: GPM and memory of a slice, the process list with MIG on",
        "needs a GPU in MIG mode: nvidia-smi -mig 1",
    ),
    "driver_reload": (
        "A running console survives rmmod nvidia and modprobe nvidia",
        "needs root on a machine of one's own",
    ),
    "xid": (
        "An XID reaches the screen",
        "needs a kernel with an illegal address (XID 31), which disturbs other programs on the GPU",
    ),
    "vllm_two_gpus": (
        "vLLM with tensor_parallel_size 2 starts",
        "needs two GPUs, vLLM and a model",
    ),
    "clocks": (
        "Clocks that a setting holds down have a reason",
        "needs the right to set clocks: nvidia-smi -lgc",
    ),
    "clocks_power": (
        "The throttle reasons under a load that the power limit holds down",
        "needs a load above the limit of the card: read gpm's power first",
    ),
    "aftermath": (
        "A job is as fast after a probe as before",
        "takes 15 minutes: python -m benchmarks.aftermath --device gpu:0 --probes op_mix",
    ),
    "overhead": (
        "Steps of 6 ms, bare and measured, paired",
        "benchmarks.overhead measures on a CPU only so far",
    ),
    "published": (
        "Tokens/s beside HF Trainer and a bare loop of the same model",
        "benchmarks.training measures on a CPU only so far",
    ),
}


for _name, (_title, _needs) in LIST.items():
    add_by_hand(f"by_hand.{_name}", _title, _needs)
