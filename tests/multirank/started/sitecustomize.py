"""Python runs this at the start of every rank: ranks live for seconds and import torch and Thunder,
so they look for garbage rarely. That takes a sixth off the import.
"""

import gc

gc.set_threshold(100_000, 10, 10)
