"""Files of every stage of every region, for a person to read: ``MDFUSE_DUMP=folder``."""

import itertools
from pathlib import Path

from thunder_mdfuse import knobs
from thunder_mdfuse.errors import MdfuseError

_counter = itertools.count()


class Dump:
    """Writes ``NN_stage.txt`` into ``folder/name``; does nothing while ``MDFUSE_DUMP`` is empty.

    The texts of the last writing are also kept in ``texts``, so that they can be shown without
    files.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.texts: dict[str, str] = {}
        self._folder: Path | None = None

    def write(self, stage: str, text: str, suffix: str = "txt") -> None:
        """Note the text of ``stage``.

        Raises ``MdfuseError`` when ``MDFUSE_DUMP`` names a folder that cannot be written to.
        """
        number = list(self.texts).index(stage) if stage in self.texts else len(self.texts)
        self.texts[stage] = text
        where = knobs.text("MDFUSE_DUMP")
        if not where:
            return
        try:
            if self._folder is None:
                folder = Path(where) / f"{self.name}_{next(_counter)}"
                folder.mkdir(parents=True, exist_ok=True)
                self._folder = folder
            (self._folder / f"{number:02d}_{stage}.{suffix}").write_text(text)
        except OSError as e:
            raise MdfuseError(
                f"MDFUSE_DUMP={where!r}: stage {stage!r} of {self.name} cannot be written there "
                f"({e.strerror}: {e.filename}). It needs a folder that you may write to, or whose "
                "parents you may make; name another one, or unset the variable."
            ) from e
