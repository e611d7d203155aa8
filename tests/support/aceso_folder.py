"""A small folder of Aceso's files, whose numbers are easy to compute by hand."""

import json
from pathlib import Path
from typing import Any

LAYER = (
    # name, forward and backward in us, output in MB, activations in MB; a layer's input is 2 MB, the values 1 MB
    ("enc-1st-layernorm", 1, 2, 4, 2),
    ("enc-attention-qkv", 10, 20, 5, 3),
    ("enc-attention-score", 1, 2, 11, 8),
    ("enc-attention-softmax", 1, 2, 11, 8),
    ("enc-attention-dropout", 1, 2, 11, 12),
    ("enc-attention-context", 1, 2, 3, 1),
    ("enc-attention-dense", 10, 20, 4, 2),
    ("enc-post-attention-dropout", 1, 2, 2, 3),
    ("enc-2nd-layernorm", 1, 2, 4, 2),
    ("enc-MLP-GEMM-1", 10, 20, 10, 8),
    ("enc-MLP-gelu", 1, 2, 10, 8),
    ("enc-MLP-GEMM-2", 10, 20, 4, 2),
    ("enc-post-MLP-dropout", 1, 2, 2, 3),
)
HEADER = "op_name,forward-compute,backward-compute,input_size,output_size,weights,activations,fwd_reserved,bwd_reserved"
PLAN = "gpt_tiny_2stages"


def profile(samples: int = 1, faster: float = 1.0) -> str:
    """Return a profile. Everything but weights grows with the samples."""
    rows = [
        ("encoder-embedding", 5, 5, 2, 2),
        *LAYER,
        ("final-layernorm", 1, 2, 2, 2),
        ("gpt-post-process", 9, 18, 0, 6),
    ]
    lines, given = [HEADER], 0.0
    for name, forward, backward, output, kept in rows:
        weights = {"encoder-embedding": 6, "gpt-post-process": 4}.get(name, 0 if forward == 1 else 10)
        seconds = f"{forward * samples / faster},{backward * samples / faster}"
        lines.append(f"{name},{seconds},{given * samples},{output * samples},{weights},{kept * samples},0,0")
        given = output
    return "\n".join(lines) + "\n"


def plan_body(first: int = 14, **changes: Any) -> dict[str, Any]:
    """Return a plan of two layers in two stages, the first with `first` of the 29 operators."""
    counts = [first, 29 - first]
    return {
        "model_name": "gpt",
        "model_size": "tiny",
        "num_layers": 2,
        "seq_length": 8,
        "global_batch_size": 8,
        "micro_batch_size": 1,
        "num_stages": 2,
        "num_gpus": [1, 1],
        "checkpoint_activations": [True, True],
        "resharding_stages": [False, False],
        "num_ops_in_each_stage": counts,
        "model_parallel_size_of_each_op": [[1] * count for count in counts],
        "data_parallel_size_of_each_op": [[1] * count for count in counts],
        "recompute_ops": [[0] * count for count in counts],
        "algo_of_each_op": [[0] * count for count in counts],
    } | changes


def write_folder(folder: Path, body: dict[str, Any] | None = None) -> Path:
    """Write profiles of one and two samples, undivided and on two GPUs, links, collectives and a plan."""
    for place in ("plans", "profiles", "runs"):
        (folder / place).mkdir(parents=True)
    (folder / "plans" / f"{PLAN}.json").write_text(json.dumps(body or plan_body()))
    for samples in (1, 2):
        for degree in (1, 2):
            name = f"gpt_tiny_mbs{samples}_tp{degree}_algo0.csv"
            (folder / "profiles" / name).write_text(profile(samples, degree))
    for name in ("p2p_intra_node.csv", "p2p_inter_node.csv"):
        (folder / "profiles" / name).write_text("1,2,4\n1.0,1.0,1.0\n")
    text = "data_size(MB),time(ms)\n1,0.003\n4,0.009\n"
    (folder / "profiles" / "prim_gpt_tiny_all_reduce_2gpus.csv").write_text(text)
    return folder
