"""A build of torch that is not installed here, as far as versions go: for programs that must say
why torch cannot use the GPU.

The folder is first on PYTHONPATH. It names a torch to `importlib.metadata`, and its `sitecustomize`
gives the torch that a program imports this version and this CUDA version. Everything else is the
installed CPU build, which finds no GPU, as a CUDA build does on a driver that is too old.
"""

from __future__ import annotations

import os
from pathlib import Path

CUSTOMIZE = """\
import importlib.abc
import importlib.util
import sys


class AroundVersion(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name != "torch.version":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        self.loader, found.loader = found.loader, self
        return found

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        module.cuda = {cuda!r}
        module.__version__ = {version!r}


sys.meta_path.insert(0, AroundVersion())
"""


def torch_build(
    folder: Path, version: str, cuda: str, environment: dict[str, str]
) -> dict[str, str]:
    """`environment` with a torch of this version (`2.13.0+cu130`) and CUDA version (`13.0`); its
    files are in `folder`."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "version.py").write_text(f"cuda: Optional[str] = {cuda!r}\n")
    described = folder / f"torch-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    (folder / "sitecustomize.py").write_text(CUSTOMIZE.format(cuda=cuda, version=version))
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), environment.get("PYTHONPATH")))),
    }
