"""Logits of a head whose vocabulary ranks divide, and the cross-entropy of them.

`divided_logits` stands for the logits of all ranks in a loss function, `cross_entropy` computes the loss with exchanges
of maxima and sums, and `loss_trial` says whether a loss function reads anything else.
"""
