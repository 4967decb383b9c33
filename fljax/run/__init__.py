"""Runs: rounds compiled as one program, simulated or trained with files and resume, swept, planned and profiled."""

import sys
from pkgutil import iter_modules

import lazy_loader

if sys.platform == "win32":  # it has neither the locks of files nor the limits of processes that runs need
    raise ImportError("fljax runs on Linux and macOS; on Windows, install it in the Windows Subsystem for Linux (WSL)")

# A module is imported when it is first used.
__getattr__, __dir__, _ = lazy_loader.attach(__name__, [module.name for module in iter_modules(__path__)])
