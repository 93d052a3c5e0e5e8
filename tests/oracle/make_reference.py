#!/usr/bin/env python3
"""Writes the reference that tests/test_oracle.cpp reproduces: python make_reference.py OUT.h5

Needs torch, numpy and h5py (from PyPI, CPU only). Runs a 2-layer GPT and a few single functions with PyTorch's own
modules, in float64 and float32. The same versions write the same bytes. Weights of nn.Linear are [out, in] there and
are transposed here to [in, out]; heads come second there ([B, H, T, D]) and third here ([B, T, H, D]).

  tokens, targets                 i32 [B, T]; some targets are -100 (ignored)
  weights/<parameter>             f32, the start of every run below
  pre|post/<dtype>/logits, loss   of the forward pass
  pre|post/<dtype>/losses         before each of 10 AdamW steps (lr 1e-2, weight decay 0.1 on matrices only)
  pre|post/<dtype>/grads/<parameter>   at the start (not for post/f32, to keep the file small)
  pre/f64/final/<parameter>       after the steps
  ops/<name>/...                  f64: inputs, output y, upstream gradient dy, gradients d<input>
"""
import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, CONTEXT, LAYERS, HEADS, WIDTH = 32, 10, 2, 4, 16
BATCH, TIME, STEPS = 3, 9, 10
IGNORE = -100


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, HEADS, c // HEADS).transpose(1, 2) for part in self.qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, placement):
        super().__init__()
        self.placement = placement
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x):
        if self.placement == "pre":
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Gpt(nn.Module):
    def __init__(self, placement):
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position_embedding = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(placement) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.position_embedding(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token_embedding.weight)


def is_linear_weight(model, name):
    return isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Linear) and name.endswith(".weight")


def write_model(group, model, tensor_of):
    for name, parameter in model.named_parameters():
        value = tensor_of(parameter).detach()
        group[name] = (value.T if is_linear_weight(model, name) else value).contiguous().numpy()


def random_weights():
    """Large enough that every part matters; norms and biases away from 1 and 0. Exact in float32."""
    torch.manual_seed(1)
    weights = {}
    for name, parameter in Gpt("pre").named_parameters():
        noise = torch.randn(parameter.shape)
        is_norm_weight = "norm" in name and name.endswith("weight")
        weights[name] = 1 + 0.1 * noise if is_norm_weight else (0.3 if parameter.dim() > 1 else 0.1) * noise
    return weights


def loss_of(logits, targets):
    return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1), ignore_index=IGNORE)


def run(group, placement, weights, tokens, targets, dtype):
    model = Gpt(placement)
    model.load_state_dict(weights)
    model.to(dtype)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-2, betas=(0.9, 0.999), eps=1e-8, foreach=False)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = model(tokens)
        loss = loss_of(logits, targets)
        loss.backward()
        if step == 0:
            group["logits"], group["loss"] = logits.detach().numpy(), loss.detach().numpy()
            if (placement, dtype) != ("post", torch.float32):
                write_model(group.create_group("grads"), model, lambda p: p.grad)
        losses.append(loss.item())
        optimizer.step()
    group["losses"] = np.array(losses)
    if placement == "pre" and dtype == torch.float64:
        write_model(group.create_group("final"), model, lambda p: p)


def write_op(group, function, inputs, constants=None):
    """`inputs` are differentiated; `constants` are passed on and only stored."""
    constants = constants or {}
    leaves = {name: value.double().requires_grad_() for name, value in inputs.items()}
    y = function(**leaves, **constants)
    dy = torch.randn(y.shape, dtype=torch.float64)
    y.backward(dy)
    stored = dict(y=y, dy=dy, **leaves, **{f"d{name}": leaf.grad for name, leaf in leaves.items()}, **constants)
    stored_as = {torch.int64: np.int32, torch.bool: np.uint8, torch.float64: np.float64}
    for name, value in stored.items():
        group[name] = value.detach().numpy().astype(stored_as[value.dtype])


def attention_ops(ops):
    def sdpa(**options):
        def function(q, k, v, mask=None):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options).transpose(1, 2)
        return function

    def qkv(time_q, time_k, heads, kv_heads, size, batch=2):
        return dict(q=torch.randn(batch, time_q, heads, size), k=torch.randn(batch, time_k, kv_heads, size),
                    v=torch.randn(batch, time_k, kv_heads, size))

    write_op(ops.create_group("attention_full"), sdpa(), qkv(3, 7, 2, 2, 5))
    write_op(ops.create_group("attention_causal"), sdpa(is_causal=True), qkv(6, 6, 2, 2, 4))
    # The causal rule of a cache: the last query sees every key.
    write_op(ops.create_group("attention_causal_aligned_at_end"), sdpa(), qkv(3, 7, 2, 2, 4),
             dict(mask=torch.ones(3, 7, dtype=torch.bool).tril(4)))
    keep = torch.rand(2, 2, 5, 6) < 0.6
    keep[..., 0] = True
    write_op(ops.create_group("attention_keep_mask"), sdpa(), qkv(5, 6, 2, 2, 3), dict(mask=keep))
    write_op(ops.create_group("attention_added_mask"), sdpa(), dict(**qkv(5, 6, 2, 2, 3), mask=torch.randn(2, 1, 5, 6)))
    lengths = torch.tensor([6, 4])
    write_op(ops.create_group("attention_padded"), sdpa(), qkv(5, 6, 2, 2, 3),
             dict(mask=(torch.arange(6) < lengths[:, None])[:, None, None, :]))
    ops["attention_padded/key_lengths"] = lengths.numpy().astype(np.int32)
    write_op(ops.create_group("attention_grouped"), sdpa(enable_gqa=True, is_causal=True), qkv(5, 5, 4, 2, 3))


def single_ops(ops):
    attention_ops(ops)
    write_op(ops.create_group("layernorm"), lambda x, weight, bias: F.layer_norm(x, (7,), weight, bias, 1e-5),
             dict(x=torch.randn(4, 7) * 3 + 100, weight=torch.randn(7), bias=torch.randn(7)))
    x = torch.linspace(-6, 6, 25)
    write_op(ops.create_group("gelu"), lambda x: F.gelu(x), dict(x=x))
    write_op(ops.create_group("gelu_tanh"), lambda x: F.gelu(x, approximate="tanh"), dict(x=x))
    write_op(ops.create_group("cross_entropy"),
             lambda logits, targets: F.cross_entropy(logits, targets, ignore_index=IGNORE),
             dict(logits=torch.randn(6, 9) * 4), dict(targets=torch.tensor([3, IGNORE, 0, 8, IGNORE, 3])))


def main(path):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    weights = random_weights()
    torch.manual_seed(2)
    tokens = torch.randint(VOCABULARY, (BATCH, TIME))
    targets = torch.randint(VOCABULARY, (BATCH, TIME))
    targets[0, 5:] = IGNORE
    targets[2, 0] = IGNORE
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file["tokens"], file["targets"] = tokens.numpy().astype(np.int32), targets.numpy().astype(np.int32)
        start = Gpt("pre")
        start.load_state_dict(weights)
        write_model(file.create_group("weights"), start, lambda p: p)
        for placement in ("pre", "post"):
            for name, dtype in (("f64", torch.float64), ("f32", torch.float32)):
                run(file.create_group(f"{placement}/{name}"), placement, weights, tokens, targets, dtype)
        torch.manual_seed(3)
        single_ops(file.create_group("ops"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
