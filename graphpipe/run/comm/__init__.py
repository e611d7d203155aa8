"""Communication between ranks.

`world` joins the ranks of a run, and raises PeerLost or PeerStalled when a peer is gone. `messages` sends and receives
the values and gradients that cross stage edges (a `schedule.Transfer` describes each), over its `P2PGroups`.
`offload_messages` carries what stages offload to other ranks. `rank_placement` says which rank hosts which replica.
`broadcast`, `scalar_sum` and `collective_calls` are collectives.
`batch_comparison` compares mini-batches before a step.
"""
