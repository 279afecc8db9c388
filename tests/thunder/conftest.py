"""Lets tests import their neighbours: in importlib mode pytest puts no folder on sys.path."""

import sys
from pathlib import Path

_FOLDER = str(Path(__file__).resolve().parent)
if _FOLDER not in sys.path:
    sys.path.append(_FOLDER)
