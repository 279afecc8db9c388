"""The encoder of test_encoder.py cut over ranks, through thunderfx; started by that file."""

import copy

import torch
from models.parallel import tensor_parallel_encoder
from models.test_encoder import embedded, encoder
from thunder.dynamo import thunderfx
from torch.distributed.device_mesh import DeviceMesh

from thunder_mdfuse import explain, mdfuse_executor
from thunder_mdfuse.comm.communicator import Communicator


def main() -> None:
    communicator = Communicator.instance()
    assert communicator.group is not None
    mesh = DeviceMesh("cpu", list(range(communicator.size())))
    right, batch = encoder()
    model = tensor_parallel_encoder(copy.deepcopy(right), mesh)
    fused = thunderfx(model, executors=[mdfuse_executor])
    with torch.no_grad():
        found, wanted = embedded(fused, batch), embedded(right, batch)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    (graph,) = fused._backend.subgraph_infos
    # Thunder leaves the mask's new_ones to torch, and nothing else.
    (reason,) = graph.split_reasons
    assert "new_ones" in reason.info, reason
    sent = [c.name for r in explain(fused).regions for c in r.collectives]
    assert sent == ["all_reduce"] * (2 * len(right.encoder.layer)), sent
    print("embeddings as eager's", flush=True)


if __name__ == "__main__":
    main()
