#!/bin/bash
# Workers of a cluster on Slurm: `sbatch --array=1-20 slurm.sh`. The scheduler runs elsewhere, for as long as there is work.
#SBATCH --job-name=epbuild-worker
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=12:00:00

export EPBUILD_REMOTE_CACHE=${EPBUILD_REMOTE_CACHE:-/shared/epbuild}
export EPBUILD_CACHE_DIR=${TMPDIR:-/tmp}/epbuild-$USER
: "${EPBUILD_SIGNING_KEY:?epbuild cache key makes one}"

exec epbuild worker tls://scheduler.example:8786 --tls "$HOME/certificates/worker" --slots 2 --max-memory 14GB
