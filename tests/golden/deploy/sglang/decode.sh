#!/usr/bin/env bash
# One decode worker: 4 × H20-96GB.
# Usage: ./decode.sh [WORKER]   the number of this worker on this host, from 0; it moves ports and accelerators
set -euo pipefail
worker=${1:-0}
port=$((8200 + worker))
HOST_IP=${HOST_IP:-$(hostname -I | cut -d' ' -f1)}  # the address at which the router and the other role reach this host
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-$(seq -s, $((worker * 4)) $((worker * 4 + 3)))}
export CUDA_VISIBLE_DEVICES
export UCX_TLS=rc,cuda_copy,cuda_ipc,self
export SGLANG_DISAGG_STAGING_BUFFER=1

exec python3 -m sglang.launch_server \
  --model-path Qwen/Qwen3-32B \
  --served-model-name Qwen/Qwen3-32B \
  --dtype bfloat16 \
  --tp-size 4 \
  --kv-cache-dtype fp8_e4m3 \
  --page-size 64 \
  --enable-metrics \
  --disaggregation-mode decode \
  --disaggregation-transfer-backend nixl \
  --host "$HOST_IP" --port "$port"
