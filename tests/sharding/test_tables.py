"""The committed tables say what the engine does, and no deviation moves more than eager does."""

import pytest
from sharding.eager_cases import CASES
from sharding.tables import FOLDER, TABLES, compare


@pytest.mark.parametrize("name", TABLES)
def test_table(name, update_golden):
    found = TABLES[name]()
    if update_golden:
        (FOLDER / name).write_text(found)
    assert (FOLDER / name).read_text() == found, "write it anew with --update-golden and review it"


def test_no_deviation_moves_more_bytes_than_eager():
    rows = [compare(name) for name in CASES]
    found = [row for row in rows if row.differs]
    assert len(found) > 5
    for row in found:
        if row.eager is not None:
            theirs, ours = row.eager_bytes + row.eager_owed, row.our_bytes + row.our_owed
            assert ours <= theirs, row
