#!/usr/bin/env python3
"""The measurement of `reef bench model`, done by llama.cpp: model_llama.py FILE.gguf f32|bf16|as-is THREADS [WORK_DIR]

`as-is` runs the file in the quantisation it has; the others run a copy whose matrices are written out in that precision
(norms stay f32, as llama.cpp wants them), kept in WORK_DIR. Uses the shared library of the PyPI package
`llama-cpp-py-sync` (a build of llama.cpp for AVX2) by its C interface, and `gguf` to write the copy.
"""
import json
import pathlib
import sys
import tempfile
import time

import gguf
import numpy
from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib

PROMPT, TOKENS, REPEATS = 512, 64, 3
KINDS = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16}
FILE_TYPES = {"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16}


def written_out(source, dtype, target):
    """A copy of a GGUF file with its matrices in another precision."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name == "general.file_type":
            writer.add_file_type(FILE_TYPES[dtype])
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        kind = KINDS[dtype] if values.ndim > 1 else KINDS["f32"]
        data = values if kind == KINDS["f32"] else gguf.quants.quantize(values, kind)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Engine:
    """One model with room for eight sequences."""

    def __init__(self, path, threads):
        self.lib, self.ffi = get_lib(), get_ffi()
        # What llama.cpp says of itself while it loads is not a figure.
        self.silent = self.ffi.callback("void(enum ggml_log_level, const char *, void *)", lambda *_: None)
        self.lib.llama_log_set(self.silent, self.ffi.NULL)
        self.lib.llama_backend_init()
        parameters = self.lib.llama_model_default_params()
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), parameters)
        if self.model == self.ffi.NULL:
            sys.exit(f"llama.cpp cannot load {path}")
        settings = self.lib.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_seq_max = 8192, PROMPT, PROMPT, 8
        settings.n_threads = settings.n_threads_batch = threads
        self.context = self.lib.llama_init_from_model(self.model, settings)
        self.vocabulary = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model))

    def forget(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def run(self, rows):
        """One forward pass of (token, position, sequence, wants logits)."""
        batch = self.lib.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for n, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.logits[n] = token, position, 1, wanted
            batch.seq_id[n][0] = sequence
        code = self.lib.llama_decode(self.context, batch)
        self.lib.llama_batch_free(batch)
        if code != 0:
            sys.exit(f"llama_decode answered {code}")
        self.lib.llama_synchronize(self.context)

    def likeliest(self, row):
        logits = self.lib.llama_get_logits_ith(self.context, row)
        return int(numpy.frombuffer(self.ffi.buffer(logits, 4 * self.vocabulary), numpy.float32).argmax())


def prefill(engine, prompt):
    engine.forget()
    started = time.perf_counter()
    engine.run([(token, n, 0, n == PROMPT - 1) for n, token in enumerate(prompt)])
    return PROMPT / (time.perf_counter() - started)


def decode(engine, prompt, batch):
    engine.forget()
    beginning = prompt[: PROMPT // 8]
    for sequence in range(batch):
        engine.run([(token, n, sequence, False) for n, token in enumerate(beginning)])
    tokens = [1] * batch
    started = time.perf_counter()
    for step in range(TOKENS):
        engine.run([(token, len(beginning) + step, sequence, True) for sequence, token in enumerate(tokens)])
        tokens = [engine.likeliest(row) for row in range(batch)]
    return batch * TOKENS / (time.perf_counter() - started)


def main():
    source, dtype, threads = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    work = pathlib.Path(sys.argv[4] if len(sys.argv) > 4 else tempfile.mkdtemp())
    path = source
    if dtype != "as-is":
        path = work / f"{source.stem}-{dtype}.gguf"
        if not path.exists():
            written_out(source, dtype, path)
    engine = Engine(path, threads)
    prompt = [(i * 7919 + 13) % engine.vocabulary for i in range(PROMPT)]
    best = lambda measure: max(measure() for _ in range(REPEATS))
    print(json.dumps({
        "kind": "llama.cpp", "dtype": dtype, "threads": threads, "prefill": best(lambda: prefill(engine, prompt)),
        "decode": [[b, best(lambda: decode(engine, prompt, b))] for b in (1, 8)],
    }))


if __name__ == "__main__":
    main()
