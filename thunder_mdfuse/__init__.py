"""thunder_mdfuse: a Lightning-Thunder fusion executor for one GPU or many.

    import thunder, torch
    from thunder_mdfuse import explain, mdfuse_executor

    fused = thunder.jit(lambda x: torch.softmax(x, -1) * 2, executors=[mdfuse_executor])
    fused(torch.randn(64, 1024))
    print(explain(fused))

``mdfuse_executor``: what ``thunder.jit`` and ``thunder.dynamo.thunderfx`` take among ``executors``.
``explain(fused)``: the regions, kernels and bytes that a call became, and what stayed outside.
``CUDAGraphTransform``: for ``thunder.jit(..., transforms=[CUDAGraphTransform()])``.
``FusionDefinition``: a fusion written op by op, with ``DataType`` and ``ParallelType``; no Thunder.
``execute_with_dtensors``, ``FusionDefinitionWrapper``: the same on DTensors; more is in
``thunder_mdfuse.multidevice``.
``thunder_mdfuse.errors`` has the exceptions, ``thunder_mdfuse.drawing`` draws programs.

Names are loaded on first use, so that ``import thunder_mdfuse`` needs no GPU, no compiler, no
Thunder.
"""

from importlib import import_module

__version__ = "0.1.0"

_PUBLIC = {
    "mdfuse_executor": "thunder_mdfuse.thunder.executor",
    "explain": "thunder_mdfuse.thunder.inspect",
    "CUDAGraphTransform": "thunder_mdfuse.thunder.graphs",
    "FusionDefinition": "thunder_mdfuse.definition",
    "FusionDefinitionWrapper": "thunder_mdfuse.multidevice",
    "execute_with_dtensors": "thunder_mdfuse.multidevice",
    "DataType": "thunder_mdfuse.direct.dtypes",
    "ParallelType": "thunder_mdfuse.direct.dtypes",
}
__all__ = [
    "CUDAGraphTransform",
    "DataType",
    "FusionDefinition",
    "FusionDefinitionWrapper",
    "ParallelType",
    "__version__",
    "execute_with_dtensors",
    "explain",
    "mdfuse_executor",
]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
