"""Federations: data sets, which client owns which examples, and how a batch is gathered.

`fljax.load` reads a data set, `fljax.PARTITIONS` split it among clients, `fljax.build` makes a federation from rows.
"""

from pkgutil import iter_modules

import lazy_loader

# A module is imported when it is first used.
__getattr__, __dir__, _ = lazy_loader.attach(__name__, [module.name for module in iter_modules(__path__)])
