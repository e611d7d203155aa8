"""Failures of ranks: what each rank was doing, and faults injected on purpose for tests.

The runtime calls `status_reporter` before every piece of work. It writes the rank's status (`rank_status`), which the
launcher reads after the rank has died, and injects the faults that are due (`injector`). A lost peer is noticed in
`comm/world`, `launch/` stops the other ranks, and `training/elastic/` plans again. `fault` parses the text of
a fault, and `check_faults` checks before a training that it can strike. `out_of_memory` names the stage in which an
allocation failed.
"""
