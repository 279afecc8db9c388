"""Lets tests import each other's modules: in importlib mode pytest puts nothing on sys.path."""

import sys
from pathlib import Path

_TESTS = str(Path(__file__).parent.parent)
if _TESTS not in sys.path:
    sys.path.append(_TESTS)
