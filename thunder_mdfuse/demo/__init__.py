"""The demo, ``python -m thunder_mdfuse.demo``: a tensor-parallel SwiGLU MLP through
``thunder.jit``, shown stage by stage, checked against eager DTensor, and timed.
"""
