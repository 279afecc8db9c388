"""Ships ``csrc/`` in a wheel as ``thunder_mdfuse/_csrc``: no checkout lies beside an installed one.

Everything else is in pyproject.toml. An editable install uses the checkout's own ``csrc/``.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithSources(build_py):
    """``build_py``, then the C++ and CUDA sources that programs are compiled from at run time."""

    def run(self) -> None:
        """Builds the package, sources included."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "thunder_mdfuse" / "_csrc"
        shutil.rmtree(target, ignore_errors=True)  # of an earlier build, perhaps of removed files
        shutil.copytree("csrc", target)


setup(cmdclass={"build_py": BuildWithSources})
