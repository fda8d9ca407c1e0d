#!/bin/sh
# Installs what the tests of this folder need where that is possible; elsewhere they are skipped.
set -eu
missing=
for program in podman buildah mmdebstrap skopeo docker-registry; do
  command -v "$program" >/dev/null || missing=yes
done
if [ -z "$missing" ]; then
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "podman is not installed, and only root with apt-get can install it: its tests are skipped."
  exit 0
fi
echo "Installing podman, buildah, runc, mmdebstrap, skopeo and docker-registry for the tests of containers."
export DEBIAN_FRONTEND=noninteractive
timeout 120 apt-get update -qq || true
timeout 240 apt-get install -y -qq --no-install-recommends \
  podman buildah runc netavark catatonit mmdebstrap skopeo docker-registry >/dev/null ||
  echo "podman could not be installed: its tests are skipped."
