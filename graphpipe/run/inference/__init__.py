"""Answers requests with a plan that does not train.

`inference_pipeline` is the entry. `request_queue` cuts and joins requests into windows of samples, `inference_replica`
computes a stage and finds the samples that fail, and `failure_reports` brings these to the rank that answers.
"""
