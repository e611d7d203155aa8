"""Several ranks share each replica of a stage.

`rank_team` is how they exchange values, `share_stages` puts their parts in place of submodules, and `tensor_slices`
says which parameters they divide.
"""
