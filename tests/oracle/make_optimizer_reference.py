#!/usr/bin/env python3
"""Writes the traces that tests/test_optimizers.cpp reproduces: python make_optimizer_reference.py OUT.h5

Needs torch >= 2.9, numpy and h5py (from PyPI, CPU only). Runs PyTorch's optimizers for 50 steps in float64 on the same
parameters and gradients, with a changing learning rate; parameter 1 has no gradient in every step t with t % 5 == 3.
The same versions write the same bytes. Muon's matrices are transposed around it, since a weight is [out, in] there and
[in, out] here, and its iterations run in float64 as well: there they are rounded to bfloat16.

  start.p<i>       f32, the parameters
  grads.p<i>       f32 [50, ...]
  rates            f64 [50], for a base rate of 1
  <case>.<step>    f64, all parameters after that many steps, one after the other
"""
import sys

import h5py
import numpy as np
import torch

SHAPES = [(5,), (3, 7), (2, 3, 4), (17, 9)]
STEPS, KEPT = 50, (1, 2, 10, 50)


def rate(t):
    return min((t + 1) / 10, 1) * (1 - t / 80)


# name: (optimizer, base rate, options); the same as in the test.
CASES = {
    "sgd": (torch.optim.SGD, 0.05, dict()),
    "sgd_momentum": (torch.optim.SGD, 0.02, dict(momentum=0.9, weight_decay=0.1)),
    "sgd_nesterov": (torch.optim.SGD, 0.02, dict(momentum=0.8, nesterov=True, weight_decay=0.05)),
    "adam": (torch.optim.Adam, 0.02, dict(betas=(0.9, 0.99))),
    "adam_decay": (torch.optim.Adam, 0.02, dict(betas=(0.8, 0.999), eps=1e-6, weight_decay=0.2)),
    "adamw": (torch.optim.AdamW, 0.02, dict(betas=(0.9, 0.95), weight_decay=0.3)),
    "rmsprop": (torch.optim.RMSprop, 0.01, dict()),
    "rmsprop_momentum": (torch.optim.RMSprop, 0.01, dict(alpha=0.9, momentum=0.9, weight_decay=0.1)),
    "rmsprop_centered": (torch.optim.RMSprop, 0.01, dict(alpha=0.95, eps=1e-3, centered=True)),
    "rmsprop_both": (torch.optim.RMSprop, 0.005, dict(alpha=0.9, eps=1e-3, momentum=0.8, centered=True)),
    "adagrad": (torch.optim.Adagrad, 0.1, dict()),
    "adagrad_initial": (torch.optim.Adagrad, 0.1, dict(initial_accumulator_value=0.5, eps=1e-6, weight_decay=0.1)),
    "adafactor": (torch.optim.Adafactor, 0.1, dict(eps=(1e-30, 1e-3))),
    "adafactor_decay": (torch.optim.Adafactor, 0.5, dict(eps=(1e-30, 1e-2), beta2_decay=-0.7, d=1.5, weight_decay=0.1)),
    "muon": (torch.optim.Muon, 0.02, dict(adjust_lr_fn="match_rms_adamw")),
    "muon_original": (torch.optim.Muon, 0.05, dict(momentum=0.9, nesterov=False, weight_decay=0)),
}


def run(case, start, grads, write):
    kind, base, options = CASES[case]
    muon = kind is torch.optim.Muon
    chosen = [i for i, shape in enumerate(SHAPES) if not muon or len(shape) == 2]
    turned = (lambda x: x.T) if muon else (lambda x: x)
    params = {i: torch.nn.Parameter(turned(torch.tensor(start[i], dtype=torch.float64)).contiguous()) for i in chosen}
    optimizer = kind(params.values(), lr=base, **options)
    for t in range(STEPS):
        for i, p in params.items():
            present = not (i == 1 and t % 5 == 3)
            p.grad = turned(torch.tensor(grads[i][t], dtype=torch.float64)).contiguous() if present else None
        for group in optimizer.param_groups:
            group["lr"] = base * rate(t)
        optimizer.step()
        if t + 1 in KEPT:
            write(f"{case}.{t + 1}", np.concatenate([turned(p.detach()).numpy().ravel() for p in params.values()]))


def main(path):
    torch.set_num_threads(1)
    torch.bfloat16 = torch.float64  # what Muon converts to
    rng = np.random.default_rng(6)
    start = [rng.normal(size=s).astype(np.float32) for s in SHAPES]
    # The scale of the gradients drifts, so that the second moments have to follow.
    drift = [np.exp(np.sin(0.3 * t)) for t in range(STEPS)]
    grads = [np.stack([(rng.normal(size=s) + 0.3) * drift[t] for t in range(STEPS)]).astype(np.float32) for s in SHAPES]
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        for i in range(len(SHAPES)):
            file[f"start.p{i}"] = start[i]
            file[f"grads.p{i}"] = grads[i]
        file["rates"] = np.array([rate(t) for t in range(STEPS)])
        for case in CASES:
            run(case, start, grads, file.__setitem__)


if __name__ == "__main__":
    main(sys.argv[1])
