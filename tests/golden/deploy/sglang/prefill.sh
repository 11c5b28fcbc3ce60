#!/usr/bin/env bash
# One prefill worker: 2 × H100-SXM-80GB.
# Usage: ./prefill.sh [WORKER]   the number of this worker on this host, from 0; it moves ports and accelerators
set -euo pipefail
worker=${1:-0}
port=$((8100 + worker))
HOST_IP=${HOST_IP:-$(hostname -I | cut -d' ' -f1)}  # the address at which the router and the other role reach this host
bootstrap=$((8998 + worker))
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-$(seq -s, $((worker * 2)) $((worker * 2 + 1)))}
export CUDA_VISIBLE_DEVICES
export UCX_TLS=rc,cuda_copy,cuda_ipc,self
export SGLANG_DISAGG_STAGING_BUFFER=1

exec python3 -m sglang.launch_server \
  --model-path Qwen/Qwen3-32B \
  --served-model-name Qwen/Qwen3-32B \
  --dtype bfloat16 \
  --tp-size 2 \
  --kv-cache-dtype fp8_e4m3 \
  --page-size 64 \
  --enable-metrics \
  --disaggregation-mode prefill \
  --disaggregation-transfer-backend nixl \
  --disaggregation-bootstrap-port "$bootstrap" \
  --host "$HOST_IP" --port "$port"
