"""Communication between ranks.

`world` joins the ranks of a run, and raises PeerLost or PeerStalled when a peer is gone. `messages` sends and receives
the values and gradients that cross stage edges (a `schedule.Transfer` describes each), over the groups of `p2p_groups`.
`peer_watch` finds lost peers where the backend of messages does not.
`offload_messages` carries what stages offload to other ranks. `rank_placement` says which rank hosts which replica.
`broadcast`, `scalar_sum` and `collective_calls` are collectives.
`batch_comparison` compares mini-batches before a step.
"""
