"""What is known of the operators of Megatron's transformer layer, beside their profile.

    in -> layernorm -> qkv -> score -> softmax -> dropout -> context -> dense -> dropout -> layernorm -> GEMM ...
              |          |                                      ^                   ^
              |          +------------- values -----------------+                   |
              +----------------------- residual ------------------------------------+

A profile's `output_size` counts these skips at every operator that they pass. Operators with other names form a chain.

References:
    Shoeybi et al.: Megatron-LM: training multi-billion parameter language models using model parallelism. 2019,
    section 3. Korthikanti et al.: Reducing activation recomputation in large transformer models. MLSys 2023, section 4.
"""

SKIPS = {
    "enc-attention-context": "enc-attention-qkv",
    "enc-post-attention-dropout": "enc-1st-layernorm",
    "enc-post-MLP-dropout": "enc-2nd-layernorm",
}
"""Operators of a layer that also read an earlier one, or what passes through it."""
VALUES = "enc-attention-qkv"
"""Its skip carries the attention's values, which are as large as the context. The other skips carry a layer's input."""
NOT_SAVED = frozenset({"enc-attention-score", "enc-attention-dense", "enc-MLP-GEMM-2"})
"""Operators whose output is not needed for any backward, and is freed once it was read: a softmax saves what it
returns, and a dropout its mask. A profile of one operator counts the output all the same."""
FIRST = "enc-1st-layernorm"
"""What is recomputed together ends before a new layer."""
ALL_REDUCES = {
    "encoder-embedding": "forward",
    "enc-attention-qkv": "backward",
    "enc-attention-dense": "forward",
    "enc-MLP-GEMM-1": "backward",
    "enc-MLP-GEMM-2": "forward",
    "gpt-post-process": "backward",
}
"""Operators that sum a layer's input or its gradient over the group, if weights are split as Megatron does (algorithm
0)."""
TIED = ("encoder-embedding", "gpt-post-process")
"""The first and last operator share the word embedding."""
