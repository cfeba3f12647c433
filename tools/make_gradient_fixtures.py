#!/usr/bin/env python3
"""Makes crates/train/tests/fixtures/: losses, gradients and SGD steps of the models as PyTorch computes them.

    python3 tools/make_gradient_fixtures.py        (needs torch; the files were made with 2.15.0 on the CPU)

Each file is safetensors: `samples`, `inputs` or `tokens`, `targets.HEAD`, `loss`, `evaluation_loss`; `parameter.NAME` before,
`gradient.NAME` at, and `stepped.NAME` after three steps of torch.optim.SGD on the same batch; `buffer.NAME` after the
first. A model too large to be stored has parameters by a formula (`filling`), of which `filling.NAME` holds the middle
and the reach, and `sketch.NAME` instead of the gradient: some of its elements, and its length at the end. All
arithmetic is in double precision and rounded at the end, so the numbers are nearer to the truth than any
single-precision program's.
"""
import json
import math
import struct
from pathlib import Path

import torch
import torch.nn.functional as F

TARGET = Path(__file__).parent.parent / "crates" / "train" / "tests" / "fixtures"
MEAN, DEVIATION = 0.25, 0.5
SGD = {"lr": 0.125, "momentum": 0.5, "weight_decay": 0.0625}
# Elements of a gradient in a sketch.
SKETCHED = 32


# Each model: its shapes (in the order of the Rust model), its buffers, and forward(p, b, inputs, training) -> heads.


class Cnn:
    samples, features, targets = 6, 20 * 16, [(1, 10)]
    shapes = {
        "conv1.weight": (8, 1, 5, 5), "conv1.bias": (8,), "conv2.weight": (16, 8, 5, 5), "conv2.bias": (16,),
        "fc.weight": (10, 32), "fc.bias": (10,),
    }

    @staticmethod
    def forward(p, b, x, training):
        def layer(images, name):
            return F.avg_pool2d(F.relu(F.conv2d(images, p[f"{name}.weight"], p[f"{name}.bias"])), 2)

        # Height and width differ, so that exchanging them is noticed.
        images = layer(layer(x.reshape(-1, 1, 20, 16), "conv1"), "conv2")
        return [F.linear(images.flatten(1), p["fc.weight"], p["fc.bias"])]


class Mlp:
    samples, features, targets = 6, 24, [(1, 10)]
    shapes = {"fc1.weight": (128, 24), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)}

    @staticmethod
    def forward(p, b, x, training):
        return [F.linear(F.relu(F.linear(x, p["fc1.weight"], p["fc1.bias"])), p["fc2.weight"], p["fc2.bias"])]


def convolve(p, b, x, training, convolution, norm, stride=1):
    weight = p[f"{convolution}.weight"]
    x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
    mean, variance = b[f"{norm}.running_mean"], b[f"{norm}.running_var"]
    return F.batch_norm(x, mean, variance, p[f"{norm}.weight"], p[f"{norm}.bias"], training)


def add_convolution(shapes, convolution, norm, inputs, outputs, kernel):
    shapes[f"{convolution}.weight"] = (outputs, inputs, kernel, kernel)
    shapes[f"{norm}.weight"] = shapes[f"{norm}.bias"] = (outputs,)


class ResNet20:
    samples, features, targets, stored = 3, 12 * 8, [(1, 10)], False
    shapes = {}
    add_convolution(shapes, "conv1", "bn1", 1, 16, 3)
    channels = 16
    for stage, width in [(1, 16), (2, 32), (3, 64)]:
        for block in range(3):
            name = f"layer{stage}.{block}"
            add_convolution(shapes, f"{name}.conv1", f"{name}.bn1", channels, width, 3)
            add_convolution(shapes, f"{name}.conv2", f"{name}.bn2", width, width, 3)
            channels = width
    shapes |= {"fc.weight": (10, 64), "fc.bias": (10,)}

    @staticmethod
    def forward(p, b, x, training):
        x = F.relu(convolve(p, b, x.reshape(-1, 1, 12, 8), training, "conv1", "bn1"))
        for stage in 1, 2, 3:
            for block in range(3):
                name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
                inner = F.relu(convolve(p, b, x, training, f"{name}.conv1", f"{name}.bn1", stride))
                inner = convolve(p, b, inner, training, f"{name}.conv2", f"{name}.bn2")
                if stride == 2:
                    x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, x.shape[1]))
                x = F.relu(x + inner)
        return [F.linear(x.mean((2, 3)), p["fc.weight"], p["fc.bias"])]


class ResNet50:
    """With two channels at first instead of 64, and 2, 1, 1, 1 blocks."""

    samples, features, targets, stored = 3, 3 * 64 * 32, [(1, 5)], False
    shapes = {}
    add_convolution(shapes, "conv1", "bn1", 3, 2, 7)
    inputs, blocks = 2, [2, 1, 1, 1]
    for stage, count in enumerate(blocks):
        width = 2 << stage
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            add_convolution(shapes, f"{name}.conv1", f"{name}.bn1", inputs, width, 1)
            add_convolution(shapes, f"{name}.conv2", f"{name}.bn2", width, width, 3)
            add_convolution(shapes, f"{name}.conv3", f"{name}.bn3", width, 4 * width, 1)
            if block == 0:
                add_convolution(shapes, f"{name}.downsample.0", f"{name}.downsample.1", inputs, 4 * width, 1)
            inputs = 4 * width
    shapes |= {"fc.weight": (5, 64), "fc.bias": (5,)}

    @classmethod
    def forward(cls, p, b, x, training):
        x = F.relu(convolve(p, b, x.reshape(-1, 3, 64, 32), training, "conv1", "bn1", 2))
        x = F.max_pool2d(x, 3, 2, 1)
        for stage, count in enumerate(cls.blocks):
            for block in range(count):
                name, stride = f"layer{stage + 1}.{block}", 2 if stage > 0 and block == 0 else 1
                inner = F.relu(convolve(p, b, x, training, f"{name}.conv1", f"{name}.bn1"))
                inner = F.relu(convolve(p, b, inner, training, f"{name}.conv2", f"{name}.bn2", stride))
                inner = convolve(p, b, inner, training, f"{name}.conv3", f"{name}.bn3")
                if block == 0:
                    x = convolve(p, b, x, training, f"{name}.downsample.0", f"{name}.downsample.1", stride)
                x = F.relu(x + inner)
        return [F.linear(x.mean((2, 3)), p["fc.weight"], p["fc.bias"])]


def linear(p, x, name):
    return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def norm(p, x, name, epsilon):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], epsilon)


def attend(query, key, value, heads, causal):
    query, key, value = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal).transpose(1, 2).flatten(2)


def add_linear(shapes, name, inputs, outputs):
    shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def add_norm(shapes, name, width):
    shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}


class TransformerLm:
    samples, features, vocabulary, targets = 3, 5, 11, [(5, 11)]
    shapes = {"wte.weight": (11, 8), "wpe.weight": (5, 8)}
    for layer in range(2):
        add_norm(shapes, f"h.{layer}.ln_1", 8)
        add_linear(shapes, f"h.{layer}.attn.c_attn", 8, 24)
        add_linear(shapes, f"h.{layer}.attn.c_proj", 8, 8)
        add_norm(shapes, f"h.{layer}.ln_2", 8)
        add_linear(shapes, f"h.{layer}.mlp.c_fc", 8, 32)
        add_linear(shapes, f"h.{layer}.mlp.c_proj", 32, 8)
    add_norm(shapes, "ln_f", 8)

    @staticmethod
    def forward(p, b, x, training):
        x = F.embedding(x, p["wte.weight"]) + p["wpe.weight"]
        for layer in range(2):
            name = f"h.{layer}"
            inner = linear(p, norm(p, x, f"{name}.ln_1", 1e-5), f"{name}.attn.c_attn")
            x = x + linear(p, attend(*inner.split(8, 2), 2, True), f"{name}.attn.c_proj")
            inner = linear(p, norm(p, x, f"{name}.ln_2", 1e-5), f"{name}.mlp.c_fc")
            x = x + linear(p, F.gelu(inner, approximate="tanh"), f"{name}.mlp.c_proj")
        return [F.linear(norm(p, x, "ln_f", 1e-5), p["wte.weight"]).flatten(0, 1)]


class Bert:
    samples, length, vocabulary, targets = 3, 6, 13, [(6, 13), (1, 2)]
    shapes = {f"bert.embeddings.{name}.weight": (entries, 8) for name, entries in
              [("word_embeddings", 13), ("position_embeddings", 7), ("token_type_embeddings", 2)]}
    add_norm(shapes, "bert.embeddings.LayerNorm", 8)
    for layer in range(2):
        name = f"bert.encoder.layer.{layer}"
        for part in "query", "key", "value":
            add_linear(shapes, f"{name}.attention.self.{part}", 8, 8)
        add_linear(shapes, f"{name}.attention.output.dense", 8, 8)
        add_norm(shapes, f"{name}.attention.output.LayerNorm", 8)
        add_linear(shapes, f"{name}.intermediate.dense", 8, 32)
        add_linear(shapes, f"{name}.output.dense", 32, 8)
        add_norm(shapes, f"{name}.output.LayerNorm", 8)
    add_linear(shapes, "bert.pooler.dense", 8, 8)
    shapes["cls.predictions.bias"] = (13,)
    add_linear(shapes, "cls.predictions.transform.dense", 8, 8)
    add_norm(shapes, "cls.predictions.transform.LayerNorm", 8)
    add_linear(shapes, "cls.seq_relationship", 8, 2)

    @classmethod
    def inputs(cls):
        tokens = torch.randint(0, cls.vocabulary, (cls.samples, cls.length))
        types = (torch.arange(cls.length) >= 2).long().expand(cls.samples, -1)
        return torch.cat([tokens, types], 1)

    @classmethod
    def forward(cls, p, b, x, training):
        tokens, types = x.split(cls.length, 1)
        embeddings = {name: p[f"bert.embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
        x = F.embedding(tokens, embeddings["word"]) + embeddings["position"][:cls.length]
        x = norm(p, x + F.embedding(types, embeddings["token_type"]), "bert.embeddings.LayerNorm", 1e-12)
        for layer in range(2):
            name = f"bert.encoder.layer.{layer}"
            parts = [linear(p, x, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
            mixed = linear(p, attend(*parts, 2, False), f"{name}.attention.output.dense")
            x = norm(p, x + mixed, f"{name}.attention.output.LayerNorm", 1e-12)
            inner = linear(p, F.gelu(linear(p, x, f"{name}.intermediate.dense")), f"{name}.output.dense")
            x = norm(p, x + inner, f"{name}.output.LayerNorm", 1e-12)
        follows = linear(p, torch.tanh(linear(p, x[:, 0], "bert.pooler.dense")), "cls.seq_relationship")
        x = F.gelu(linear(p, x, "cls.predictions.transform.dense"))
        x = norm(p, x, "cls.predictions.transform.LayerNorm", 1e-12)
        return [(F.linear(x, embeddings["word"]) + p["cls.predictions.bias"]).flatten(0, 1), follows]


MODELS = {"cnn": Cnn, "mlp": Mlp, "resnet20": ResNet20, "resnet50": ResNet50, "transformer-lm": TransformerLm, "bert": Bert}


def filling(number, shape):
    """Numbers in -1..1 that need not be stored: Knuth's multiplicative hash of the element, exact in single precision."""
    element = torch.arange(math.prod(shape), dtype=torch.int64)
    hashed = ((element + 1) * 2654435761 + (number + 1) * 2654404609) % 2**32
    return ((hashed // 256).double() / 2**23 - 1).reshape(shape)


def start(model, number, name, shape):
    """The first value of a parameter, rounded to single precision: what the file holds is what was computed with."""
    is_norm = any(part in name for part in ("bn", "downsample.1", "ln_", "LayerNorm"))
    middle = 1.0 if is_norm and name.endswith("weight") else 0.0
    if getattr(model, "stored", True):
        return (torch.randn(shape) * 0.2 + middle).double(), None
    reach = 0.25 if len(shape) == 1 else (6 / math.prod(shape[1:])) ** 0.5
    middle, reach = (torch.tensor(value).float().double() for value in (middle, reach))
    return (middle + reach * filling(number, shape)).float().double(), torch.stack([middle, reach])


def sketch(gradient):
    flat = gradient.flatten()
    return torch.cat([flat[:: -(-len(flat) // SKETCHED)], flat.norm().reshape(1)])


def make(model):
    if hasattr(model, "vocabulary"):
        inputs = model.inputs() if hasattr(model, "inputs") else torch.randint(0, model.vocabulary, (model.samples, model.features))
        tensors, given = {"tokens": inputs.double()}, inputs
    else:
        inputs = torch.rand(model.samples, model.features).double()
        tensors, given = {"inputs": inputs}, (inputs - MEAN) / DEVIATION
    targets = [torch.randint(0, classes, (model.samples * each,)) for each, classes in model.targets]
    tensors["samples"] = torch.tensor([model.samples]).double()
    tensors |= {f"targets.{head}": target.double() for head, target in enumerate(targets)}
    parameters, stored = {}, getattr(model, "stored", True)
    for number, (name, shape) in enumerate(model.shapes.items()):
        value, filled_by = start(model, number, name, shape)
        tensors |= {f"parameter.{name}": value.clone()} if stored else {f"filling.{name}": filled_by}
        parameters[name] = value.requires_grad_()
    norms = [name.removesuffix(".weight") for name in model.shapes if any(part in name for part in ("bn", "downsample.1")) and name.endswith("weight")]
    buffers = {f"{name}.running_mean": torch.zeros(model.shapes[f"{name}.weight"]).double() for name in norms}
    buffers |= {f"{name}.running_var": torch.ones(model.shapes[f"{name}.weight"]).double() for name in norms}

    def loss(training):
        heads = model.forward(parameters, buffers, given, training)
        return sum(F.cross_entropy(logits, target) for logits, target in zip(heads, targets))

    optimizer = torch.optim.SGD(parameters.values(), **SGD)
    for step in range(3 if stored else 1):
        optimizer.zero_grad()
        value = loss(True)
        value.backward()
        if step == 0:
            tensors["loss"] = value.detach().reshape(1)
            tensors["evaluation_loss"] = loss(False).detach().reshape(1)
            tensors |= {f"buffer.{name}": value.clone() for name, value in buffers.items()}
            gradients = {name: p.grad for name, p in parameters.items()}
            tensors |= {f"gradient.{name}": g.clone() for name, g in gradients.items()} if stored else {f"sketch.{name}": sketch(g) for name, g in gradients.items()}
        optimizer.step()
    return tensors | ({f"stepped.{name}": p.detach() for name, p in parameters.items()} if stored else {})


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
for number, (name, model) in enumerate(MODELS.items()):
    torch.manual_seed(number)
    save(TARGET / f"{name}.safetensors", make(model))
