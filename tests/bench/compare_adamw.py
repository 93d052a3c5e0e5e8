#!/usr/bin/env python3
"""AdamW of 100 million parameters in turn with PyTorch's fused one: python compare_adamw.py [ROUNDS] [THREADS]

Needs torch and build/release/tapestry. Prints the times of each round and the median of their ratios.
"""
import re
import statistics
import subprocess
import sys
import time

import torch

COUNT, STEPS = 100_000_000, 12


def ours(threads):
    command = ["build/release/tapestry", "bench", "optimizer", "--filter", "AdamW", "--threads", str(threads)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    milliseconds, _, share = re.search(r"^AdamW +([\d.]+) +([\d.]+) +(\d+)%", out, re.M).groups()
    return float(milliseconds), int(share)


def theirs(optimizer):
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.step()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[2:])


def main(rounds=5, threads=2):
    torch.set_num_threads(threads)
    parameter = torch.nn.Parameter(torch.randn(COUNT))
    parameter.grad = torch.randn(COUNT)
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, fused=True)
    ratios = []
    for _ in range(rounds):
        torch_ms = theirs(optimizer)
        our_ms, share = ours(threads)
        ratios.append(torch_ms / our_ms)
        print(f"torch {torch_ms:.1f} ms, tapestry {our_ms:.1f} ms ({share} % of the measured bandwidth): {ratios[-1]:.2f}x")
    print(f"median: {statistics.median(ratios):.2f}x")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
