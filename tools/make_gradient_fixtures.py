#!/usr/bin/env python3
"""Makes crates/train/tests/fixtures/: losses, gradients and SGD steps of both models as PyTorch computes them.

    python3 tools/make_gradient_fixtures.py        (needs torch; the files were made with 2.15.0 on the CPU)

Each file is safetensors: `inputs`, `labels`, `loss`; `parameter.NAME` before, `gradient.NAME` at, and `stepped.NAME`
after three steps of torch.optim.SGD on the same batch. All arithmetic is in double precision and rounded at the end,
so the numbers are nearer to the truth than any single-precision program's.
"""
import json
import struct
from pathlib import Path

import torch
import torch.nn.functional as F

TARGET = Path(__file__).parent.parent / "crates" / "train" / "tests" / "fixtures"
MEAN, DEVIATION = 0.25, 0.5
SGD = {"lr": 0.125, "momentum": 0.5, "weight_decay": 0.0625}


def cnn(p, x):
    def layer(images, name):
        return F.avg_pool2d(F.relu(F.conv2d(images, p[f"{name}.weight"], p[f"{name}.bias"])), 2)

    # Height and width differ, so that exchanging them is noticed.
    images = layer(layer(x.reshape(-1, 1, 20, 16), "conv1"), "conv2")
    return F.linear(images.flatten(1), p["fc.weight"], p["fc.bias"])


def mlp(p, x):
    return F.linear(F.relu(F.linear(x, p["fc1.weight"], p["fc1.bias"])), p["fc2.weight"], p["fc2.bias"])


MODELS = {
    "cnn": (cnn, 20 * 16, {
        "conv1.weight": (8, 1, 5, 5), "conv1.bias": (8,), "conv2.weight": (16, 8, 5, 5), "conv2.bias": (16,),
        "fc.weight": (10, 32), "fc.bias": (10,),
    }),
    "mlp": (mlp, 24, {
        "fc1.weight": (128, 24), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,),
    }),
}


def make(forward, features, shapes):
    samples = 6
    inputs = torch.rand(samples, features).double()
    labels = torch.randint(0, 10, (samples,))
    # Rounded to single precision first: what the file holds is what was computed with.
    parameters = {name: (torch.randn(shape) * 0.2).double().requires_grad_() for name, shape in shapes.items()}
    tensors = {"inputs": inputs, "labels": labels.double()}
    tensors |= {f"parameter.{name}": value.detach().clone() for name, value in parameters.items()}

    def loss():
        return F.cross_entropy(forward(parameters, (inputs - MEAN) / DEVIATION), labels)

    optimizer = torch.optim.SGD(parameters.values(), **SGD)
    for step in range(3):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        if step == 0:
            tensors["loss"] = value.detach().reshape(1)
            tensors |= {f"gradient.{name}": p.grad.clone() for name, p in parameters.items()}
        optimizer.step()
    return tensors | {f"stepped.{name}": p.detach() for name, p in parameters.items()}


def save(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        content = tensor.float().contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


TARGET.mkdir(parents=True, exist_ok=True)
for number, (model, arguments) in enumerate(MODELS.items()):
    torch.manual_seed(number)
    save(TARGET / f"{model}.safetensors", make(*arguments))
