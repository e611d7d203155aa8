"""A captured model in files, which the launcher of a run writes and its ranks read.

`capture_file` writes and reads the files. `node_json` converts the nodes of the graph to JSON and back.
"""
