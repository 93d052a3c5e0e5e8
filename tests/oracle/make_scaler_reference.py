#!/usr/bin/env python3
"""Writes the table that tests/test_grad_scaler.cpp reproduces: python make_scaler_reference.py OUT.h5

Needs torch, numpy and h5py (from PyPI, CPU only). Runs torch.amp.GradScaler over random patterns of overflow, each with
random settings, and notes its state after every update. The same versions write the same bytes.

  settings  f64 [SETTINGS, 4]  init_scale, growth_factor, backoff_factor, growth_interval; PATTERNS / SETTINGS each
  overflow  i32 [PATTERNS]     bit t is set where the gradient of step t is infinite; never ten in a row
  scale     f32 [PATTERNS]     after the last step
  counter   u8  [PATTERNS]     steps without overflow, after the last step
  digest    i64 [PATTERNS]     FNV-1a over the bits of the scale and the counter (32-bit words) after every step
"""
import sys

import h5py
import numpy as np
import torch

SETTINGS, PATTERNS, STEPS = 250, 10000, 24
INIT = [1.0, 1024.0, 65536.0, 2.0**100, 2.0**127, 12345.678]
GROWTH, BACKOFF = [1.5, 2.0, 3.0, 4.0], [0.25, 0.5, 0.7]


def random_pattern(rng):
    """Overflows of one frequency, redrawn until none of them would end a run."""
    while True:
        pattern = rng.random(STEPS) < rng.choice([0, 0.1, 0.3, 0.6])
        if "1" * 10 not in "".join(map(str, pattern.astype(int))):
            return pattern


def run(settings, pattern):
    """The scale and the counter after each step of plain SGD on one number."""
    scaler = torch.amp.GradScaler("cpu", init_scale=settings[0], growth_factor=settings[1],
                                  backoff_factor=settings[2], growth_interval=int(settings[3]))
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler.scale(torch.zeros(()))  # makes the state
    for overflow in pattern:
        weight.grad = torch.tensor(float("inf") if overflow else 0.0)
        scaler.step(optimizer)
        scaler.update()
        yield scaler._scale.item(), scaler._growth_tracker.item()


def digest(states):
    value = 0xcbf29ce484222325
    for scale, counter in states:
        for word in (int(np.float32(scale).view(np.uint32)), counter):
            value = ((value ^ word) * 0x100000001b3) % 2**64
    return value


def main():
    rng = np.random.default_rng(6)
    settings = np.stack([np.float32(rng.choice(INIT, SETTINGS)).astype(np.float64), rng.choice(GROWTH, SETTINGS),
                         rng.choice(BACKOFF, SETTINGS), rng.integers(1, 7, SETTINGS).astype(np.float64)], axis=1)
    patterns = [random_pattern(rng) for _ in range(PATTERNS)]
    states = [list(run(settings[i * SETTINGS // PATTERNS], p)) for i, p in enumerate(patterns)]
    with h5py.File(sys.argv[1], "w") as file:
        file["settings"] = settings
        file["overflow"] = np.array([sum(1 << t for t in range(STEPS) if p[t]) for p in patterns], dtype=np.int32)
        file["scale"] = np.array([s[-1][0] for s in states], dtype=np.float32)
        file["counter"] = np.array([s[-1][1] for s in states], dtype=np.uint8)
        file["digest"] = np.array([digest(s) for s in states], dtype=np.uint64).view(np.int64)


if __name__ == "__main__":
    main()
