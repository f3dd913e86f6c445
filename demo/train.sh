#!/bin/sh
# Trains everything on one GPU: the transformer beside the VAE decoder and the scorer, then measures.
# Usage: demo/train.sh OUT_FOLDER [DIT_SECONDS] [DECODER_SECONDS] [SCORER_SECONDS] [extra options of train_dit]
set -u
out=$1; dit=${2:-480}; decoder=${3:-180}; scorer=${4:-50}
[ $# -gt 4 ] && shift 4 || shift $#
export PYTHONUNBUFFERED=1
python3 -m demo.train_dit --seconds "$dit" --out "$out/diffusion_models/carnator_demo_wan.safetensors" "$@" \
    || python3 -m demo.train_dit --eager --seconds "$dit" --out "$out/diffusion_models/carnator_demo_wan.safetensors" &
first=$!
(
    [ "$decoder" = 0 ] || python3 -m demo.train_decoder --seconds "$decoder" --out "$out/vae/carnator_demo_vae.safetensors"
    [ "$scorer" = 0 ] || python3 -m demo.train_scorer --seconds "$scorer" --vae "$out/vae/carnator_demo_vae.safetensors" \
        --out "$out/carnator_demo_scorer.safetensors"
) &
wait $first
wait
python3 -m demo.evaluate --models "$out" --out "$out/demo_world.json" --sheet "$out/sheet.jpg" --sweep \
    --commit "${COMMIT:-unknown}"
