#!/usr/bin/env bash
# One decode worker: 4 × H20-96GB.
# Usage: ./decode.sh [WORKER]   the number of this worker on this host, from 0; it moves ports and accelerators
set -euo pipefail
worker=${1:-0}
port=$((8200 + worker))
HOST_IP=${HOST_IP:-$(hostname -I | cut -d' ' -f1)}  # the address at which the router and the other role reach this host
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-$(seq -s, $((worker * 4)) $((worker * 4 + 3)))}
export CUDA_VISIBLE_DEVICES

exec vllm serve Qwen/Qwen3-32B \
  --served-model-name Qwen/Qwen3-32B \
  --dtype bfloat16 \
  --tensor-parallel-size 4 \
  --kv-cache-dtype fp8_e4m3 \
  --block-size 64 \
  --kv-transfer-config '{"kv_connector":"DiptychConnector","kv_connector_module_path":"diptych.integrations.vllm","kv_role":"kv_consumer","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"host":"'"$HOST_IP"'","certificate":"/etc/diptych/worker.pem","key":"/etc/diptych/worker.key","authority":"/etc/diptych/authority.pem"}}' \
  --host "$HOST_IP" --port "$port"
