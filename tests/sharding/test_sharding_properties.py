"""2,000 random programs on simulated meshes: all local programs together against torch on the
whole. ``hunt.py`` beside this file draws more of them, outside of CI.
"""

import pytest
from sharding.checking import check_program, drawn

# Seed, way and count, in parts so that test processes share them.
PARTS = [(n, "drawn", 450) for n in range(4)] + [(4, "sequence", 60), (5, "eager", 140)]


@pytest.mark.parametrize(("number", "way", "count"), PARTS)
def test_local_programs_compute_what_the_whole_does(number, way, count):
    programs = drawn(number, count)
    assert len(programs) == count
    for program in programs:
        check_program(program, way)
