"""Puts this folder on the path: its tests share models and a way to run stages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other
