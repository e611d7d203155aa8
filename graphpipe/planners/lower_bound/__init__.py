"""Lower bounds on the step time of every plan, with proofs."""
