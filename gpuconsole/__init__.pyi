from gpuconsole.notebook.console import WatchError as WatchError
from gpuconsole.notebook.magic import load_ipython_extension as load_ipython_extension
from gpuconsole.notebook.session import Session as Session
from gpuconsole.notebook.session import watch as watch

__version__: str
