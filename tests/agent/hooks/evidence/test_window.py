"""The profiler window of a user's job: where none is taken."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch

from gpuconsole.agent.hooks import graphs
from gpuconsole.agent.hooks.evidence.probes import ProfilerWindow
from gpuconsole.agent.probes import ProbeError
from gpuconsole.agent.protocol import Profile


class Graph:
    """Stands for torch.cuda.CUDAGraph, which needs a GPU."""


def test_no_profiler_starts_beside_a_captured_graph_and_one_starts_once_it_is_gone(
    tmp_path: Path,
) -> None:
    graph = Graph()
    graphs._present.graph = weakref.ref(graph)
    graphs.capture_ended(False)
    with pytest.raises(ProbeError, match="replays CUDA graphs"):
        ProfilerWindow(Profile(1, 1, ""), str(tmp_path), torch.device("cpu"))
    assert not torch._C._autograd._profiler_enabled()
    del graph
    ProfilerWindow(Profile(1, 1, ""), str(tmp_path), torch.device("cpu")).stop()
