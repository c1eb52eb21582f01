#!/bin/sh
# A program that is not Python: it descends a bowl in log2 lr, with noise by its seed. usage: walk.sh LR SEED
# Some awks take the seeds 0 and 1 for one.
awk -v lr="$1" -v seed="$2" 'BEGIN {
  srand(seed + 1); value = 4; x = log(lr) / log(2) + 6
  for (step = 1; step <= 50; step++) {
    value += 0.2 * (1 + 0.1 * x * x - value) + 0.02 * (rand() - 0.5)
    if (step % 5 == 0) printf "step %d: val loss %.6f\n", step, value
  }
}'
