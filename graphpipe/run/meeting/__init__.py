"""How ranks find each other, before and after their first message.

`choose_device` says where a rank computes. `rendezvous_store` and `host_address` say where ranks meet. `set_up_errors`
and `peer_loss` tell what a user can mend from a peer that is gone, and `reachability` finds the hosts that are.
"""
