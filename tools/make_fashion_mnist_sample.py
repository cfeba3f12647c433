#!/usr/bin/env python3
"""Makes data/fashion-mnist/: the first images of each class, in the order of the full set.

    tools/make_fashion_mnist_sample.py [SOURCE [TARGET]]

SOURCE holds the full set as gzip IDX files (default: where Debian's dataset-fashion-mnist puts them). The output
depends on nothing but the input: no randomness, and no time stamp in the gzip header.
"""
import gzip
import struct
import sys
from pathlib import Path

SOURCE = Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/datasets/fashion-mnist")
TARGET = Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parent.parent / "data" / "fashion-mnist")
CLASSES = 10
PIXELS = 28 * 28


def read(name, header_bytes):
    content = gzip.decompress((SOURCE / name).read_bytes())
    return content[:header_bytes], content[header_bytes:]


def write(name, content):
    (TARGET / name).write_bytes(gzip.compress(content, compresslevel=9, mtime=0))


def sample(prefix, per_class):
    images_name, labels_name = f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"
    images_header, images = read(images_name, 16)
    labels_header, labels = read(labels_name, 8)
    left = [per_class] * CLASSES
    chosen = []
    for index, label in enumerate(labels):
        if left[label]:
            left[label] -= 1
            chosen.append(index)
    assert not any(left), f"{prefix}: some class has fewer than {per_class} images"
    # The counts stand in bytes 4..8 of both headers; the magic number before and the dimensions after stay.
    count = struct.pack(">I", len(chosen))
    pixels = b"".join(images[index * PIXELS:(index + 1) * PIXELS] for index in chosen)
    write(images_name, images_header[:4] + count + images_header[8:] + pixels)
    write(labels_name, labels_header[:4] + count + bytes(labels[index] for index in chosen))


TARGET.mkdir(parents=True, exist_ok=True)
sample("train", 600)
sample("t10k", 100)
