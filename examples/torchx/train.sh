#!/bin/bash
# Train on several hosts with a scheduler of TorchX, one rank per GPU:
#     SCHEDULER=kubernetes NODES=4 examples/torchx/train.sh CONFIG.toml [key=value ...]
# The image is that of this project's Dockerfile, with the configuration and the task in it.
set -euo pipefail
nodes=${NODES:-1} gpus=${GPUS:-8} cores=${CORES:-96}

# Each rank computes on its share of a node's cores. torchrun, which `dist.ddp` starts, would set one thread.
exec torchx run --scheduler "${SCHEDULER:-local_docker}" dist.ddp \
    --image "${IMAGE:-graphpipe}" --name graphpipe -j "${nodes}x${gpus}" \
    --cpu "$cores" --gpu "$gpus" --memMB "${MEMORY_MB:-1000000}" \
    --env "OMP_NUM_THREADS=$((cores / gpus))" --max_retries 0 \
    -m graphpipe -- train "$@"
