#!/usr/bin/env python3
"""Records a small real trace, to hold crates/train/src/kineto.rs against what PyTorch writes.

    python3 tools/make_trace_fixture.py crates/train/tests/fixtures/kineto.json.gz

A small network with most of what shapes must tell apart: a convolution and its batch normalisation, an embedding that is also
the last layer, a parameter that is added without a module, and two linear layers of the same size. Four iterations of
training on the CPU with shapes and stacks. Events and fields that no reader of profiles needs are left out.
"""
import gzip
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

KEPT = ("cpu_op", "user_annotation")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(1, 4, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm1d(4)
        self.embedding = nn.Embedding(50, 16)
        self.position = nn.Parameter(torch.zeros(1, 12, 16))
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens):
        rows = self.embedding(tokens) + self.position
        noise = self.stem_norm(self.stem(rows.mean(-1, keepdim=True).transpose(1, 2))).mean(1).unsqueeze(-1)
        rows = self.second(torch.relu(self.first(rows + noise)))
        return nn.functional.linear(self.norm(rows), self.embedding.weight)


def record(path):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tokens = torch.randint(50, (8, 12))
    timing = schedule(wait=0, warmup=3, active=4, repeat=1)

    def export(profiler):
        profiler.export_chrome_trace(str(path))

    activities = [ProfilerActivity.CPU]
    with profile(
        activities=activities, schedule=timing, on_trace_ready=export, record_shapes=True, with_stack=True
    ) as profiler:
        for _ in range(7):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            profiler.step()


def trimmed(trace):
    def is_kept(event):
        is_module = event.get("cat") == "python_function" and event["name"].startswith("nn.Module: ")
        return event.get("ph") == "X" and (event.get("cat") in KEPT or is_module)

    def kept(event):
        names = ["Input Dims"] + ["Concrete Inputs"] * event["name"].startswith("aten::conv")
        args = {name: value for name, value in event.get("args", {}).items() if name in names}
        return {name: event[name] for name in ("ph", "cat", "name", "pid", "tid", "ts", "dur")} | {"args": args}

    events = [kept(event) for event in trace["traceEvents"] if is_kept(event)]
    names = ("schemaVersion", "record_shapes", "with_stack", "displayTimeUnit")
    return {name: trace[name] for name in names if name in trace} | {"traceEvents": events}


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        record(path)
        trace = json.loads(path.read_text())
    text = json.dumps(trimmed(trace), separators=(",", ":"))
    # No time stamp: the same trace gives the same file.
    Path(sys.argv[1]).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
