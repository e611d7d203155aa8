"""The loss that a model's own forward computes, made exact over micro-batches.

`from_transformers` is the entry for models of Hugging Face. `own_loss` returns the loss of any module, `loss_cut` finds
its nodes in the module graph, and `exact_losses` decides whether micro-batches may compute it.
"""
