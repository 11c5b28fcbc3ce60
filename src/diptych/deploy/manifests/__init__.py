"""Kubernetes manifests, Helm values and compose files as people write them, read as deployments."""
