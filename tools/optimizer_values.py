#!/usr/bin/env python3
"""Prints what crates/train/src/optimizer.rs compares its optimisers with: five updates by PyTorch's.

    python3 tools/optimizer_values.py        (needs torch; the constants were printed by 2.15.0 on the CPU)
"""
import torch


def five_updates(make):
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 0.0]))
    optimizer = make([parameter])
    for t in range(1, 6):
        parameter.grad = torch.tensor([0.1 * t, -0.3 + 0.05 * t, 1e-6 * t, (-1.0) ** t])
        optimizer.step()
    return parameter.tolist()


SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
print("sgd", five_updates(lambda p: torch.optim.SGD(p, **SGD)))
print("sgd by nesterov", five_updates(lambda p: torch.optim.SGD(p, **SGD, nesterov=True)))
print("adamw", five_updates(lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)))
print("adamw", five_updates(lambda p: torch.optim.AdamW(p, lr=0.05, betas=(0.8, 0.99), eps=1e-3, weight_decay=0.0)))
