"""Lets tests import ``multirank.runner``: in importlib mode pytest puts no folder on sys.path."""

import sys
from pathlib import Path

_TESTS = str(Path(__file__).resolve().parents[1])
if _TESTS not in sys.path:
    sys.path.append(_TESTS)
