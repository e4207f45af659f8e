"""Installs the simulated CUDA device in each Python process that imports torch. Python imports this
file by itself: its folder is on PYTHONPATH."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

RUNTIME = Path(__file__).parent.parent / "runtime.py"


class AroundTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch once; loads the device's library before torch's module runs, and replaces parts
    of torch.cuda after that."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        if found is None or found.loader is None:
            return None
        self._loader, found.loader = found.loader, self
        return found

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = importlib.util.spec_from_file_location("simulated_cuda", RUNTIME)
        assert spec is not None and spec.loader is not None
        runtime = importlib.util.module_from_spec(spec)
        sys.modules["simulated_cuda"] = runtime
        spec.loader.exec_module(runtime)
        runtime.load()
        self._loader.exec_module(module)
        runtime.install(module)


if "SIMULATED_CUDA" in os.environ:
    sys.meta_path.insert(0, AroundTorch())
