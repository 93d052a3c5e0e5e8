#!/usr/bin/env python3
"""Writes the table that tests/test_op_oracle.cpp reproduces: python make_op_reference.py OUT.h5

Needs torch, numpy and h5py (from PyPI, CPU only). The same versions write the same bytes. A row is called "<op>: <what
it is about>" and holds the inputs, the output y, an upstream gradient dy, and d<input> for every input that is
differentiated. Inputs and dy are rounded to f32, so that a test in f32 starts from the same numbers. Random numbers
depend on the row's name alone: a new row changes no other.

  index    text, a line for each row: its name and then "<item> <dtype> <extents...>" for each tensor, with | between
  numbers  f64, the elements of all tensors in the order of the index, ids and masks too
"""
import sys
import zlib

import h5py
import numpy as np
import torch
import torch.nn.functional as F

INF, NAN = float("inf"), float("nan")


class Rows:
    def __init__(self):
        self.index, self.numbers = [], []

    def __call__(self, name, function, constants=None, **inputs):
        """A value is a shape (of normal numbers), a tensor or what makes one. Constants are the last arguments."""
        torch.manual_seed(zlib.crc32(name.encode()))
        constants = {key: made(value) for key, value in (constants or {}).items()}
        leaves = {key: made(value).requires_grad_() for key, value in inputs.items()}
        y = function(*leaves.values(), *(value.clone() for value in constants.values()))
        dy = made(tuple(y.shape))
        y.backward(dy)
        gradients = {"d" + key: torch.zeros_like(x) if x.grad is None else x.grad for key, x in leaves.items()}
        self.write(name, dict(y=y, dy=dy, **leaves, **constants, **gradients))

    def write(self, name, items):
        dtypes = {torch.int64: "i32", torch.bool: "u8", torch.float64: "f64"}
        entries = [" ".join([key, dtypes[x.dtype], *map(str, x.shape)]) for key, x in items.items()]
        self.index.append("|".join([name, *entries]))
        self.numbers += [x.detach().numpy().astype(np.float64).ravel() for x in items.values()]


def made(value):
    value = torch.randn(value) if isinstance(value, tuple) else value() if callable(value) else value
    return value.float().double() if value.is_floating_point() else value


def values(*numbers):
    return torch.tensor(numbers)


def positive(*shape):
    return lambda: torch.rand(shape) + 0.25


def distribution(*shape):
    return lambda: torch.softmax(torch.randn(shape), -1)


def ids(*numbers, shape=(-1,)):
    return torch.tensor(numbers, dtype=torch.int64).reshape(shape)


def mask(pattern, *shape):
    return torch.tensor([c == "1" for c in pattern]).reshape(shape)


def pointwise(row):
    special = values(-INF, -3.0, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 5.0, INF, NAN)
    unary = dict(
        neg=torch.neg, exp=torch.exp, log=torch.log, sqrt=torch.sqrt, square=torch.square, tanh=torch.tanh,
        sigmoid=torch.sigmoid, relu=torch.relu, silu=F.silu, gelu=F.gelu, abs=torch.abs, sign=torch.sign,
        gelu_tanh=lambda x: F.gelu(x, approximate="tanh"), expm1=torch.expm1, log1p=torch.log1p, rsqrt=torch.rsqrt,
        sin=torch.sin, cos=torch.cos, erf=torch.erf, clamp=lambda x: torch.clamp(x, -0.5, 1),
        leaky_relu=lambda x: F.leaky_relu(x, 0.2), elu=lambda x: F.elu(x, 1.5), scale=lambda x: -1.5 * x,
        softplus=lambda x: F.softplus(x, 2, threshold=40), add_scalar=lambda x: x + 0.75, affine=lambda x: 3 - 2 * x,
        reciprocal=lambda x: 2.5 / x)
    for name, function in unary.items():
        row(f"{name}: special points", function, x=special)
        positive_only = name in ("log", "log1p", "sqrt", "rsqrt")
        row(f"{name}: rank 3", function, x=positive(2, 3, 2) if positive_only else (2, 3, 2))
    for name in ("exp", "relu", "softplus"):
        row(f"{name}: empty", unary[name], x=(3, 0))
        row(f"{name}: rank 0", unary[name], x=())
    for exponent in (0, 0.5, 1, 2, 3, -1, -0.5):
        row(f"pow: exponent {exponent}", lambda x: torch.pow(x, exponent), x=special)

    binary = dict(add=torch.add, sub=torch.sub, mul=torch.mul, div=torch.div, minimum=torch.minimum,
                  maximum=torch.maximum, pow=torch.pow)
    few = values(-INF, -2.0, -0.5, 0.0, 1.0, 3.0, INF, NAN)
    for name, function in binary.items():
        def base(*shape):
            return positive(*shape) if name == "pow" else shape
        row(f"{name}: rank 1", function, a=base(5), b=(5,))
        row(f"{name}: both broadcast", function, a=base(3, 1, 2), b=(2, 1))
        row(f"{name}: rank 1 against rank 3", function, a=base(2), b=(2, 3, 2))
        row(f"{name}: rank 3 against rank 0", function, a=base(2, 1, 3), b=())
        row(f"{name}: empty against rank 1", function, a=base(0, 3), b=(3,))
        row(f"{name}: special pairs", function, a=few.repeat_interleave(8), b=few.repeat(8))

    where = lambda a, b, keep: torch.where(keep, a, b)
    row("where: all broadcast", where, dict(keep=mask("101", 3, 1)), a=(2, 1, 2), b=(2,))
    row("where: special points", where, dict(keep=mask("110011", 6)), a=values(1.0, INF, NAN, INF, NAN, 2.0),
        b=values(NAN, -INF, 3.0, NAN, INF, 4.0))
    row("where: empty", where, dict(keep=mask("1", 1)), a=(0, 2), b=(2,))
    row("masked_fill: broadcast", lambda x, hide: x.masked_fill(hide, -2.5), dict(hide=mask("010", 3)), x=(2, 3))
    row("masked_fill: special points", lambda x, hide: x.masked_fill(hide, INF), dict(hide=mask("1100", 4)),
        x=values(NAN, INF, NAN, 1.0))


def reductions(row):
    whole = dict(sum=torch.sum, mean=torch.mean, max=torch.amax, min=torch.amin, prod=torch.prod, var=torch.var,
                 stddev=torch.std, norm=torch.linalg.vector_norm, logsumexp=lambda x: x.flatten().logsumexp(0))
    for name, function in whole.items():
        row(f"{name}: rank 3", function, x=(2, 3, 2))
        row(f"{name}: rank 1", function, x=(5,))
    for name in ("sum", "mean", "max", "min", "prod", "norm", "logsumexp"):
        row(f"{name}: rank 0", whole[name], x=())
    for name in ("sum", "prod", "norm"):
        row(f"{name}: empty", whole[name], x=(0,))

    def prod(x, dim, keepdim):
        return x.prod(dim, keepdim) if isinstance(dim, int) else x.prod(dim[0], keepdim).prod(dim[1], keepdim)
    axes = dict(sum=torch.sum, mean=torch.mean, max=torch.amax, min=torch.amin, prod=prod, var=torch.var,
                stddev=torch.std,
                norm=lambda x, dim, keepdim: torch.linalg.vector_norm(x, 2, dim, keepdim), logsumexp=torch.logsumexp)
    for name, function in axes.items():
        row(f"{name}: axis 1", lambda x: function(x, dim=1, keepdim=False), x=(2, 4, 3))
        row(f"{name}: axes 0 and -1, kept", lambda x: function(x, dim=(0, -1), keepdim=True), x=(2, 3, 2))
    for name in ("sum", "norm", "logsumexp", "prod"):
        row(f"{name}: axis 1, of length 0", lambda x: axes[name](x, dim=1, keepdim=False), x=(3, 0))
        row(f"{name}: axis 1, of none", lambda x: axes[name](x, dim=1, keepdim=False), x=(0, 3))

    row("prod: axis 1, with zeros", lambda x: x.prod(1),
        x=values(2.0, 3.0, 0.5, 2.0, 0.0, 4.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0).reshape(4, 3))
    row("prod: one zero", torch.prod, x=values(2.0, 0.0, -3.0, 4.0))
    for name in ("var", "stddev"):
        function = getattr(torch, "std" if name == "stddev" else name)
        row(f"{name}: axis -1, biased", lambda x: function(x, -1, correction=0), x=(3, 4))
        row(f"{name}: axis -1, constant rows", lambda x: function(x, -1), x=torch.full((2, 3), 1.5))
    row("norm: axis 1, special rows", lambda x: torch.linalg.vector_norm(x, 2, 1),
        x=values(0.0, 0.0, 3.0, -4.0, 0.0, 0.0, INF, 1.0, NAN, 1.0).reshape(5, 2))
    row("logsumexp: axis 1, special rows", lambda x: x.logsumexp(1),
        x=values(-INF, 1.0, -INF, -INF, INF, 1.0, 90.0, 800.0, NAN, 1.0).reshape(5, 2))
    for name in ("max", "min"):
        row(f"{name}: axis 0, with NaN", lambda x: getattr(x, name)(0).values,
            x=values(1.0, NAN, 5.0, 2.0, 3.0, -INF, 0.0, 4.0, INF).reshape(3, 3))
        row(f"{name}: equal elements", getattr(torch, name), x=values(1.0, 2.0, 2.0, 1.0))

    row("cumsum: axis 0", lambda x: x.cumsum(0), x=(4, 2, 2))
    row("cumsum: axis -1", lambda x: x.cumsum(-1), x=(2, 5))
    row("cumsum: axis 0, empty", lambda x: x.cumsum(0), x=(0, 3))
    row("cumsum: axis 0, special points", lambda x: x.cumsum(0), x=values(1.0, INF, 2.0, -INF, 3.0))


def shape_ops(row):
    row("reshape: to rank 2", lambda x: x.reshape(6, 2), x=(2, 3, 2))
    row("reshape: to rank 0", lambda x: x.reshape(()), x=(1, 1))
    row("permute: 2 0 1", lambda x: x.permute(2, 0, 1), x=(2, 3, 4))
    row("permute: empty", lambda x: x.permute(2, 0, 1), x=(2, 0, 4))
    row("transpose: rank 3", lambda x: x.transpose(-2, -1), x=(2, 3, 2))
    row("transpose: axes 0 and 2", lambda x: x.transpose(0, 2), x=(2, 3, 4))
    row("slice: range", lambda x: x[:, 1:3], x=(3, 4))
    row("slice: step 3", lambda x: x[1:7:3], x=(8, 2))
    row("slice: backwards by 2", lambda x: x.flip(1)[:, ::2], x=(2, 5))
    row("slice: to nothing", lambda x: x[:, 2:2], x=(2, 4))
    row("flip: axes 0 and 2", lambda x: x.flip(0, 2), x=(2, 2, 3))
    row("flip: rank 1", lambda x: x.flip(0), x=(4,))
    row("expand: new and stretched axes", lambda x: x.expand(2, 3, 4), x=(3, 1))
    row("expand: rank 0", lambda x: x.expand(2, 2), x=())
    row("expand: to nothing", lambda x: x.expand(0, 3), x=(1, 3))
    row("pad: axis 0", lambda x: F.pad(x, (0, 0, 1, 2), value=0.5), x=(2, 3))
    row("pad: empty", lambda x: F.pad(x, (2, 1), value=-1), x=(0,))
    row("repeat_interleave: axis 1", lambda x: x.repeat_interleave(3, 1), x=(2, 2, 2))
    row("repeat_interleave: rank 1", lambda x: x.repeat_interleave(2, 0), x=(3,))
    row("concat: axis 1", lambda a, b, c: torch.cat([a, b, c], 1), a=(2, 1), b=(2, 0), c=(2, 3))
    row("concat: rank 1", lambda a, b, c: torch.cat([a, b, c]), a=(2,), b=(1,), c=(3,))
    row("stack: axis 1", lambda a, b: torch.stack([a, b], 1), a=(2, 3), b=(2, 3))
    row("stack: rank 0", lambda a, b: torch.stack([a, b]), a=(), b=())
    row("split: three sizes", lambda x: torch.cat(x.split([1, 3, 2], 1)[::-1], 1), x=(2, 6))
    row("split: at 1, one part unused", lambda x: x.split([1, 2], 0)[1], x=(3, 2))
    row("chunk: three parts", lambda x: (lambda q, k, v: q * k - v)(*x.chunk(3, -1)), x=(2, 6))

    row("gather: axis 0", lambda x, index: x.gather(0, index), dict(index=ids(0, 2, 2, 2, 1, 0, shape=(2, 3))),
        x=(4, 3))
    row("gather: axis 1, longer", lambda x, index: x.gather(1, index),
        dict(index=ids(0, 1, 1, 0, 1, 1, 1, 1, shape=(2, 4))), x=(2, 2))
    row("gather: axis 0, to nothing", lambda x, index: x.gather(0, index), dict(index=ids()), x=(3,))
    row("index_select: axis 1", lambda x, index: x.index_select(1, index), dict(index=ids(2, 0, 2, 2)), x=(2, 3, 2))
    row("index_select: axis 0, nothing", lambda x, index: x.index_select(0, index), dict(index=ids()), x=(2, 3))
    scatter = lambda axis: lambda x, source, index: x.scatter_add(axis, index, source)
    row("scatter_add: axis 0", scatter(0), dict(index=ids(1, 1, 0, 1, 2, 0, shape=(2, 3))), x=(3, 3), source=(2, 3))
    row("scatter_add: axis 1, equal indices", scatter(1), dict(index=ids(1, 1, 1, 0, 2, 2, shape=(2, 3))), x=(2, 4),
        source=(2, 3))
    for name in ("tril", "triu"):
        function = getattr(torch, name)
        row(f"{name}: rank 3", function, x=(2, 3, 3))
        row(f"{name}: diagonal 1, wide", lambda x: function(x, 1), x=(2, 4))
        row(f"{name}: diagonal -1, tall", lambda x: function(x, -1), x=(4, 2))


def products(row):
    shapes = {"matrices": ((3, 4), (4, 2)), "vector by matrix": ((3,), (3, 4)), "matrix by vector": ((2, 3), (3,)),
              "vectors": ((4,), (4,)), "batch of matrices by vector": ((2, 3, 4), (4,)),
              "vector by batch of matrices": ((3,), (2, 3, 2)), "batches": ((2, 3, 4), (2, 4, 2)),
              "both batches broadcast": ((2, 1, 2, 3), (3, 3, 2)), "batch by matrix": ((2, 2, 3), (3, 2)),
              "no rows": ((0, 3), (3, 2)), "inner length 0": ((2, 0), (0, 3)), "no batches": ((0, 2, 3), (3, 2)),
              "one by one": ((1, 1), (1, 1)), "longer than a tile": ((3, 67), (67, 5))}
    for name, (a, b) in shapes.items():
        row(f"matmul: {name}", torch.matmul, a=a, b=b)
    row("matmul: a transposed", lambda a, b: a.mT @ b, a=(4, 3), b=(4, 2))
    row("matmul: b transposed, batches broadcast", lambda a, b: a @ b.mT, a=(2, 1, 2, 3), b=(2, 4, 3))
    row("matmul: both transposed", lambda a, b: a.mT @ b.mT, a=(2, 3, 2), b=(2, 4, 3))
    linear = lambda x, weight, bias=None: F.linear(x, weight.t(), bias)
    row("linear: rank 3", linear, x=(2, 3, 4), weight=(4, 5), bias=(5,))
    row("linear: rank 1", linear, x=(4,), weight=(4, 2), bias=(2,))
    row("linear: no rows", linear, x=(0, 4), weight=(4, 2), bias=(2,))
    row("linear: without bias", linear, x=(3, 2), weight=(2, 3))
    embedding = lambda table, ids: F.embedding(ids, table)
    row("embedding: equal ids", embedding, dict(ids=ids(1, 0, 1, 3, 1, 3, shape=(2, 3))), table=(5, 3))
    row("embedding: rank 0", embedding, dict(ids=ids(2, shape=())), table=(4, 2))
    row("embedding: no ids", embedding, dict(ids=ids()), table=(4, 2))
    row("embedding: padding id 1", lambda table, ids: F.embedding(ids, table, padding_idx=1),
        dict(ids=ids(1, 0, 1, 3, shape=(4,))), table=(4, 3))


def rows_of_numbers(row):
    for name, function in dict(softmax=F.softmax, log_softmax=F.log_softmax).items():
        row(f"{name}: rank 3", lambda x: function(x, -1), x=(2, 3, 4))
        row(f"{name}: rank 1", lambda x: function(x, -1), x=(5,))
        row(f"{name}: one class", lambda x: function(x, -1), x=(3, 1))
        row(f"{name}: no rows", lambda x: function(x, -1), x=(0, 4))
        row(f"{name}: no classes", lambda x: function(x, -1), x=(3, 0))
        row(f"{name}: large offsets", lambda x: function(x, -1), x=values(900.0, 901.0, -800.0, -801.5).reshape(2, 2))
        row(f"{name}: with -inf", lambda x: function(x, -1), x=values(-INF, 1.0, 2.0, 0.5, -INF, -INF).reshape(2, 3))
        def masked(x, keep):
            y = function(x.masked_fill(~keep, -INF), -1)
            # The -inf of what is hidden is a constant: no gradient comes back from it.
            return y.masked_fill(~keep, -INF) if name == "log_softmax" else y
        row(f"{name}: keep mask", masked, dict(keep=mask("110101111000", 3, 4)), x=(2, 3, 4))
        row(f"{name}: keep mask, nothing kept", masked, dict(keep=mask("000110", 2, 3)), x=(2, 3))
        row(f"{name}: added mask", lambda x, added: function(x + added, -1), x=(2, 3, 4), added=(3, 4))

    layernorm = lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias)
    row("layernorm: rank 3", layernorm, x=(2, 3, 5), weight=(5,), bias=(5,))
    row("layernorm: rank 1", layernorm, x=(5,), weight=(5,), bias=(5,))
    row("layernorm: no rows", layernorm, x=(0, 3), weight=(3,), bias=(3,))
    row("layernorm: constant rows", layernorm, x=torch.full((2, 4), 3.0), weight=(4,), bias=(4,))
    row("layernorm: std plus eps",
        lambda x, weight, bias: (x - x.mean(-1, True)) / (x.std(-1, keepdim=True) + 1e-6) * weight + bias,
        x=(3, 5), weight=(5,), bias=(5,))
    rmsnorm = lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-5)
    row("rmsnorm: rank 3", rmsnorm, x=(2, 3, 5), weight=(5,))
    row("rmsnorm: rank 1, of zeros", rmsnorm, x=torch.zeros(4), weight=(4,))

    def batchnorm(training):
        def function(x, weight, bias, running_mean, running_var):
            y = F.batch_norm(x, running_mean, running_var, weight, bias, training, 0.3)
            return torch.cat([y.flatten(), running_mean, running_var])
        return function

    def statistics(channels):
        return dict(running_mean=(channels,), running_var=positive(channels))
    row("batchnorm: training, rank 2", batchnorm(True), statistics(3), x=(4, 3), weight=(3,), bias=(3,))
    row("batchnorm: training, rank 4", batchnorm(True), statistics(2), x=(2, 2, 3, 2), weight=(2,), bias=(2,))
    row("batchnorm: eval, rank 3", batchnorm(False), statistics(3), x=(2, 3, 4), weight=(3,), bias=(3,))
    for groups in (1, 2, 4):
        row(f"groupnorm: {groups} groups", lambda x, weight, bias: F.group_norm(x, groups, weight, bias),
            x=(2, 4, 3), weight=(4,), bias=(4,))


def losses(row):
    for reduction in ("mean", "sum", "none"):
        row(f"mse: {reduction}", lambda x, t: F.mse_loss(x, t, reduction=reduction), x=(2, 3), t=(2, 3))
        row(f"l1: {reduction}", lambda x, t: F.l1_loss(x, t, reduction=reduction), x=values(1.0, 2.0, -3.0, 0.5),
            t=values(1.0, 4.0, -1.0, 0.25))
        row(f"huber: {reduction}", lambda x, t: F.huber_loss(x, t, reduction=reduction, delta=0.5),
            x=values(1.0, 2.0, -3.0, 0.5, 7.0), t=values(1.5, 4.0, -1.0, 0.25, 7.0))
        row(f"bce_with_logits: {reduction}", lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction=reduction),
            x=values(-40.0, -1.0, 0.0, 0.5, 40.0, 40.0), t=values(0.0, 0.25, 1.0, 0.5, 1.0, 0.0))
        reduced = dict(mean=torch.mean, sum=torch.sum, none=lambda y: y)[reduction]
        row(f"kl_div: {reduction}", lambda x, t: reduced(F.kl_div(x, t, reduction="none")), x=(2, 3),
            t=distribution(2, 3))
        row(f"nll: {reduction}, one ignored, weighted",
            lambda x, targets, weights: F.nll_loss(x, targets, weights, ignore_index=-1, reduction=reduction),
            dict(targets=ids(2, -1, 0, 1), weights=values(0.5, 2.0, 1.5)), x=(4, 3))
    row("mse: mean, rank 0", F.mse_loss, x=(), t=())
    row("bce_with_logits: weighted by class",
        lambda x, t, pos_weight: F.binary_cross_entropy_with_logits(x, t, pos_weight=pos_weight),
        dict(pos_weight=values(0.5, 3.0, 1.0)), x=(4, 3), t=lambda: torch.rand(4, 3))
    row("kl_div: none, targets 0", lambda x, t: F.kl_div(x, t, reduction="none"), x=values(-1.0, -2.0, -INF, -0.5),
        t=values(0.0, 1.0, 0.0, 0.25))
    row("nll: default", F.nll_loss, dict(targets=ids(1, 0)), x=(2, 3))

    def cross_entropy(**options):
        return lambda x, targets, weights=None: F.cross_entropy(x.reshape(-1, x.shape[-1]), targets.flatten(), weights,
                                                                **options)
    targets, weights = ids(3, -100, 0, 4, -100, 3), values(0.5, 2.0, 0.0, 1.5, 1.0)
    row("cross_entropy: some ignored", cross_entropy(), dict(targets=targets), x=(6, 5))
    row("cross_entropy: rank 3", cross_entropy(), dict(targets=targets.reshape(2, 3)), x=(2, 3, 5))
    row("cross_entropy: ignore index 3", cross_entropy(ignore_index=3), dict(targets=ids(3, 1, 0)), x=(3, 5))
    row("cross_entropy: smoothed", cross_entropy(label_smoothing=0.1), dict(targets=targets), x=(6, 5))
    row("cross_entropy: weighted", cross_entropy(), dict(targets=targets, weights=weights), x=(6, 5))
    row("cross_entropy: smoothed and weighted", cross_entropy(label_smoothing=0.1),
        dict(targets=targets, weights=weights), x=(6, 5))
    row("cross_entropy: z-loss", lambda x, targets: F.cross_entropy(x, targets) + 0.3 * x.logsumexp(1).square().mean(),
        dict(targets=ids(2, 0, 1)), x=(3, 4))
    row("cross_entropy: all ignored", cross_entropy(), dict(targets=ids(-100, -100)), x=(2, 3))
    row("cross_entropy: hidden class", cross_entropy(), dict(targets=ids(1, 2)),
        x=values(-INF, 1.0, 2.0, 500.0, -INF, 501.0).reshape(2, 3))

    def soft(**options):
        return lambda x, q, weights=None: F.cross_entropy(x, q, weights, **options)
    row("soft_cross_entropy: rank 2", soft(), x=(3, 4), q=distribution(3, 4))
    row("soft_cross_entropy: smoothed", soft(label_smoothing=0.2), x=(3, 4), q=distribution(3, 4))
    row("soft_cross_entropy: smoothed and weighted", soft(label_smoothing=0.2),
        dict(weights=values(0.5, 2.0, 0.0, 1.5)), x=(3, 4), q=distribution(3, 4))


def layers(row):
    """Parameters are named as the layers here name them, and weights are [in, out]."""
    def maps(gates, bias=True):
        shapes = {"maps.input.weight": (3, gates * 4), "maps.state.weight": (4, gates * 4)}
        return shapes | ({"maps.input.bias": (gates * 4,), "maps.state.bias": (gates * 4,)} if bias else {})

    def cell(step):
        return lambda x, h, input_map, state_map, *biases: step(x, h, input_map.t(), state_map.t(), *biases)
    lstm = lambda x, h, c, *parameters: torch.cat(cell(torch.lstm_cell)(x, (h, c), *parameters), 1)
    row("rnn_cell: with bias", cell(torch.rnn_tanh_cell), x=(2, 3), h=(2, 4), **maps(1))
    row("gru_cell: with bias", cell(torch.gru_cell), x=(2, 3), h=(2, 4), **maps(3))
    row("gru_cell: without bias", cell(torch.gru_cell), x=(2, 3), h=(2, 4), **maps(3, bias=False))
    row("lstm_cell: with bias", lstm, x=(2, 3), h=(2, 4), c=(2, 4), **maps(4))

    def gated(activation):
        return lambda x, gate, up, down: (activation(x @ gate) * (x @ up)) @ down
    weights = {"gate.weight": (3, 4), "up.weight": (3, 4), "down.weight": (4, 3)}
    glu = lambda x, gate, up, down: F.glu(torch.cat([x @ up, x @ gate], -1)) @ down
    row("gated_mlp: GLU", glu, x=(2, 2, 3), **weights)
    row("gated_mlp: GEGLU", gated(F.gelu), x=(2, 3), **weights)
    row("gated_mlp: SwiGLU", gated(F.silu), x=(2, 3), **weights)


def windows(row):
    """Convolution and pooling."""
    def conv(function, **options):
        return lambda x, weight, bias=None: function(x, weight, bias, **options)
    row("conv1d: plain", conv(F.conv1d), x=(2, 3, 6), weight=(2, 3, 3), bias=(2,))
    row("conv1d: stride 2, padding 1", conv(F.conv1d, stride=2, padding=1), x=(2, 2, 7), weight=(3, 2, 3), bias=(3,))
    row("conv1d: dilation 2, without bias", conv(F.conv1d, dilation=2), x=(1, 2, 7), weight=(2, 2, 3))
    row("conv1d: two groups", conv(F.conv1d, groups=2), x=(2, 4, 5), weight=(4, 2, 2), bias=(4,))
    row("conv2d: plain", conv(F.conv2d), x=(2, 2, 4, 5), weight=(3, 2, 3, 2), bias=(3,))
    row("conv2d: stride 2, padding 1", conv(F.conv2d, stride=2, padding=1), x=(1, 2, 5, 6), weight=(2, 2, 3, 3),
        bias=(2,))
    row("conv2d: dilation 2, without bias", conv(F.conv2d, dilation=2), x=(1, 2, 5, 6), weight=(2, 2, 2, 3))
    row("conv2d: depthwise", conv(F.conv2d, groups=3, padding=1), x=(1, 3, 3, 4), weight=(3, 1, 3, 3), bias=(3,))
    row("conv2d: one by one", conv(F.conv2d), x=(2, 3, 2, 2), weight=(2, 3, 1, 1), bias=(2,))
    row("conv2d: stride by axis", conv(F.conv2d, stride=(1, 2), padding=(0, 1)), x=(1, 2, 3, 4), weight=(2, 2, 2, 3))
    row("conv2d: empty batch", conv(F.conv2d), x=(0, 2, 3, 3), weight=(2, 2, 2, 2), bias=(2,))
    row("unfold: stride 2, padding 1", lambda x: F.unfold(x, (2, 3), stride=2, padding=1), x=(2, 2, 4, 3))
    row("unfold: dilation 2", lambda x: F.unfold(x, 2, dilation=2), x=(1, 2, 4, 4))
    pools = {"window 2": dict(kernel_size=2), "window 3, stride 2, padding 1": dict(kernel_size=3, stride=2, padding=1)}
    for variant, options in pools.items():
        for name in ("max_pool1d", "avg_pool1d", "max_pool2d", "avg_pool2d"):
            function = getattr(F, name)
            row(f"{name}: {variant}", lambda x: function(x, **options), x=(2, 2, 7) if "1d" in name else (1, 2, 5, 6))
    row("max_pool2d: window 3 by 2, overlapping", lambda x: F.max_pool2d(x, (3, 2), 1), x=(1, 2, 4, 4))
    row("max_pool2d: dilation 2", lambda x: F.max_pool2d(x, 2, 1, dilation=2), x=(1, 1, 4, 5))
    row("max_pool2d: window 2, empty batch", lambda x: F.max_pool2d(x, 2), x=(0, 2, 4, 4))
    row("max_pool2d: window 2, equal elements", lambda x: F.max_pool2d(x, 2), x=torch.ones(1, 1, 4, 4))
    row("max_pool1d: window 2, special points", lambda x: F.max_pool1d(x, 2),
        x=values(1.0, NAN, NAN, 2.0, -INF, -INF, INF, 3.0).reshape(1, 1, 8))
    row("avg_pool2d: padding not counted", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), x=(1, 2, 5, 6))


def main(path):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rows = Rows()
    for family in (pointwise, reductions, shape_ops, products, rows_of_numbers, losses, layers, windows):
        family(rows)
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file["index"] = np.frombuffer("\n".join(rows.index).encode(), np.uint8)
        file["numbers"] = np.concatenate(rows.numbers)
    print(f"{len(rows.index)} rows")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
