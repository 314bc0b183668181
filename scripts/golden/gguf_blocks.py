#!/usr/bin/env python3
"""Golden decodings of every GGUF encoding by the `gguf` package: random blocks and the values they stand for.

    python scripts/golden/gguf_blocks.py tests/fixtures/gguf/blocks
"""
import json
import os
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

HALVES = {  # where a block keeps its scales in half precision
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}

if __name__ == "__main__":
    random = np.random.default_rng(20260101)
    out = {}
    for kind in [T.F16, T.BF16, *HALVES]:
        length, size = GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, size=(2, size), dtype=np.uint8)
        if kind in (T.F16, T.BF16):
            values = random.normal(size=8).astype(np.float32)
            raw = values.astype(np.float16).view(np.uint8) if kind == T.F16 else (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
            blocks = raw.reshape(1, -1)
        else:
            for at in HALVES[kind]:
                scales = random.normal(scale=0.02, size=2).astype(np.float16)
                blocks[:, at : at + 2] = scales.view(np.uint8).reshape(2, 2)
        values = dequantize(blocks.reshape(-1), kind).flatten()
        out[int(kind)] = {"name": kind.name, "bytes": blocks.tobytes().hex(), "values": [float(v) for v in values]}
    with open(sys.argv[1] + ".json", "w") as f:
        json.dump(out, f)
        f.write("\n")
