# GraphPipe on NVIDIA GPUs:
#     docker build -t graphpipe .
#     docker run --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD:/work" graphpipe doctor
# torch's wheels bring CUDA, cuDNN and NCCL. Only the driver is the host's.
FROM ubuntu:24.04
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv python3-dev gcc g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/graphpipe
ENV PATH=/opt/graphpipe/bin:$PATH NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /opt/source
COPY pyproject.toml setup.py README.md constraints.txt ./
COPY graphpipe graphpipe
COPY examples examples
RUN pip install --no-cache-dir --constraint constraints.txt '.[report]' && graphpipe --version
WORKDIR /work
ENTRYPOINT ["graphpipe"]
CMD ["doctor"]
