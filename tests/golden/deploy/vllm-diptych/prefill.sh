#!/usr/bin/env bash
# One prefill worker: 2 × H100-SXM-80GB.
# Usage: ./prefill.sh [WORKER]   the number of this worker on this host, from 0; it moves ports and accelerators
set -euo pipefail
worker=${1:-0}
port=$((8100 + worker))
HOST_IP=${HOST_IP:-$(hostname -I | cut -d' ' -f1)}  # the address at which the router and the other role reach this host
rank_port=$((8400 + worker * 2))
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-$(seq -s, $((worker * 2)) $((worker * 2 + 1)))}
export CUDA_VISIBLE_DEVICES

exec vllm serve Qwen/Qwen3-32B \
  --served-model-name Qwen/Qwen3-32B \
  --dtype bfloat16 \
  --tensor-parallel-size 2 \
  --kv-cache-dtype auto \
  --block-size 64 \
  --kv-transfer-config '{"kv_connector":"DiptychConnector","kv_connector_module_path":"diptych.integrations.vllm","kv_role":"kv_producer","kv_load_failure_policy":"fail","kv_connector_extra_config":{"wire":"fp8","lease_s":60,"ownership":"push","port":'"$rank_port"',"host":"'"$HOST_IP"'","certificate":"/etc/diptych/worker.pem","key":"/etc/diptych/worker.key","authority":"/etc/diptych/authority.pem"}}' \
  --host "$HOST_IP" --port "$port"
