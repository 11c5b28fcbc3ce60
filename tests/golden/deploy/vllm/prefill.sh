#!/usr/bin/env bash
# One prefill worker: 2 × H100-SXM-80GB.
# Usage: ./prefill.sh [WORKER]   the number of this worker on this host, from 0; it moves ports and accelerators
set -euo pipefail
worker=${1:-0}
port=$((8100 + worker))
HOST_IP=${HOST_IP:-$(hostname -I | cut -d' ' -f1)}  # the address at which the router and the other role reach this host
side_channel=$((5600 + worker))
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-$(seq -s, $((worker * 2)) $((worker * 2 + 1)))}
export CUDA_VISIBLE_DEVICES
export VLLM_NIXL_SIDE_CHANNEL_HOST="$HOST_IP"
export VLLM_NIXL_SIDE_CHANNEL_PORT="$side_channel"
export UCX_TLS=rc,cuda_copy,cuda_ipc,self

exec vllm serve Qwen/Qwen3-32B \
  --served-model-name Qwen/Qwen3-32B \
  --dtype bfloat16 \
  --tensor-parallel-size 2 \
  --kv-cache-dtype fp8_e4m3 \
  --block-size 64 \
  --attention-backend FLASH_ATTN \
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_load_failure_policy":"fail","kv_connector_extra_config":{"kv_lease_duration":60}}' \
  --host "$HOST_IP" --port "$port"
