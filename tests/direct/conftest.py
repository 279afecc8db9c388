"""Lets tests import ``direct.checks``: in importlib mode pytest puts no folder on sys.path."""

import sys
from pathlib import Path

_TESTS = str(Path(__file__).parent.parent)
if _TESTS not in sys.path:
    sys.path.append(_TESTS)
