"""Answers the requests of files with a plan for inference: what `graphpipe infer` does.

`infer` is the entry. It starts local ranks (`answer_locally`), or joins those that torchrun has started
(`answer_under_torchrun`). Each rank reads the requests (`read_requests`) and runs the pipeline (`answer_rank`). The
rank of the output stage writes a journal (`journal`), which becomes the file of answers at the end (`answer_files`).
"""
