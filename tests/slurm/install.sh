#!/bin/sh
# Installs what the tests of this folder need where that is possible; elsewhere they are skipped.
set -eu
if command -v slurmctld >/dev/null && command -v munged >/dev/null; then
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "Slurm is not installed, and only root with apt-get can install it: its tests are skipped."
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
timeout 120 apt-get update -qq || true
timeout 240 apt-get install -y -qq --no-install-recommends \
  slurm-wlm slurmctld slurmd slurm-client munge iproute2 util-linux >/dev/null ||
  echo "Slurm could not be installed: its tests are skipped."
