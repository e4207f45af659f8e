"""Programs that start, serve or watch work on a GPU, by the words of their command lines."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

ProgramKind = Literal["server", "notebook", "notebooks", "launcher", "console"]


class Program(NamedTuple):
    """A program. `words`: its names as a program or as a module of Python; a word that ends in one
    of `.:-` is the beginning of a name. `notebooks` is a server of notebooks, `notebook` the kernel
    of one."""

    title: str
    kind: ProgramKind
    words: tuple[str, ...]


PROGRAMS = (
    Program("gpuconsole", "console", ("gpuconsole",)),
    Program("torchrun", "launcher", (
        "torchrun", "torch.distributed.run", "torch.distributed.launch",
    )),
    Program("accelerate", "launcher", ("accelerate", "accelerate.commands.launch")),
    Program("deepspeed", "launcher", ("deepspeed", "deepspeed.launcher.")),
    Program("MPI", "launcher", (
        "mpirun", "mpiexec", "mpiexec.", "orted", "prted", "hydra_pmi_proxy",
    )),
    Program("Slurm step", "launcher", ("slurmstepd:",)),
    Program("vLLM", "server", ("vllm", "vllm.entrypoints.", "VLLM::")),
    Program("SGLang", "server", ("sglang", "sglang.launch_server", "sglang::")),
    Program("TGI", "server", ("text-generation-",)),
    Program("llama.cpp", "server", ("llama-server",)),
    Program("TensorRT-LLM", "server", ("trtllm-serve",)),
    Program("Triton", "server", ("tritonserver",)),
    Program("LMDeploy", "server", ("lmdeploy",)),
    Program("Ollama", "server", ("ollama",)),
    Program("notebook", "notebook", ("ipykernel_launcher", "ipykernel", "colab_kernel_launcher")),
    Program("Jupyter", "notebooks", (
        "jupyter", "jupyter-", "jupyterhub-", "notebook", "jupyterlab",
    )),
)  # fmt: skip


def program_name(command: str) -> str:
    """The program of a command line without its folder; of Python its script or its module. Empty
    for an empty command line, and for code on the command line."""
    words = iter(command.split(None, 16))
    name = os.path.basename(next(words, ""))
    if not name.startswith("python"):
        return name
    for word in words:
        if word == "-c":
            return ""
        if word == "-m":
            return next(words, "")
        if word in ("-W", "-X"):
            next(words, "")
        elif not word.startswith("-"):
            return os.path.basename(word)
    return name


def program_of(command: str) -> Program | None:
    """The program of this table that a command line starts; None for another one."""
    name = program_name(command)
    return next(
        (
            program
            for program in PROGRAMS
            for word in program.words
            if name == word or (word[-1] in ".:-" and name.startswith(word))
        ),
        None,
    )
