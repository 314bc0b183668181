#!/usr/bin/env python3
"""Small tokenizers of the kinds that real models use, and what Python's `tokenizers` makes of a multilingual corpus.

    python scripts/golden/tokenizer_corpus.py tests/fixtures/tokenizers [SMOLLM2.gguf]

With the GGUF file of SmolLM2, also the ids of its vocabulary and merges as transformers reads them from that file, with
the model's own pre-tokenizer (transformers' GGUF reader leaves out the splitting of digits): `smollm2-ids.json`.
"""
import json
import os
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 2026, isn't it? They've WON'T I'LL",
    "Größe, naïve café — “quotes” … €100,50 ½ ²",
    "Быстрая коричневая лиса перепрыгивает через ленивую собаку.",
    "الثعلب البني السريع يقفز فوق الكلب الكسول ٣٤٥",
    "敏捷的棕色狐狸跳过了懒狗。东京 東京 とうきょう トウキョウ 서울",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है।",
    "ก็ไม่ได้อยู่ที่นี่ ສະບາຍດີ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 e\u0301 vs \u00e9 ﬁ Å K",
    "def f(x):\n    return x  # comment\n\n\tif x == 10000007:\r\n        print('a\\tb')   \n",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}',
    "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
    "  leading and trailing spaces   ",
    "\u200b\u00a0\u3000zero width and wide spaces\u2028line",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA!!!!!!!!!!????,,,,....",
    "1234567890 3.14159 1,000,000 0xDEADBEEF 1e-10",
    "",
    " ",
    "\n\n\n",
    "a" * 3000 + " " * 3000 + "b",
]
QWEN = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def train(tokenizer, size, alphabet):
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False, min_frequency=1,
    )
    tokenizer.train_from_iterator([line for line in CORPUS if len(line) < 1000] * 3, trainer)
    return tokenizer


def byte_level(pre, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, 700, pre_tokenizers.ByteLevel.alphabet())


def sentencepiece():
    """As the tokenizers of Llama 2: pieces with spaces as ▁, bytes for what is unknown."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
    ])
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>", *SPECIALS, *[f"<0x{b:02X}>" for b in range(256)]],
        limit_alphabet=80, show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS[0], CORPUS[1]] * 3, trainer)
    data = json.loads(tokenizer.to_str())
    # The byte pieces are ordinary vocabulary, not added tokens.
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(data))


def build():
    plain = lambda regex: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    split = lambda pattern: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), plain(False)])
    yield "gpt2", byte_level(plain(True))
    yield "smollm", byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain(True)]))
    yield "qwen2", byte_level(split(QWEN), normalizers.NFC())
    yield "llama3", byte_level(split(QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")))
    yield "sentencepiece", sentencepiece()


def main():
    out = sys.argv[1]
    ids = {}
    for name, tokenizer in build():
        tokenizer.save(os.path.join(out, f"{name}.json"), pretty=False)
        encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in CORPUS]
        ids[name] = {"ids": encoded, "decoded": [tokenizer.decode(e, skip_special_tokens=False) for e in encoded]}
    with open(os.path.join(out, "corpus.json"), "w") as f:
        json.dump({"texts": CORPUS, "tokenizers": ids}, f, ensure_ascii=False)
        f.write("\n")
    if len(sys.argv) > 2:
        from transformers import AutoTokenizer

        path = os.path.abspath(sys.argv[2])
        tokenizer = AutoTokenizer.from_pretrained(os.path.dirname(path), gguf_file=os.path.basename(path)).backend_tokenizer
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ])
        with open(os.path.join(out, "smollm2-ids.json"), "w") as f:
            json.dump({"texts": CORPUS, "ids": [tokenizer.encode(t, add_special_tokens=False).ids for t in CORPUS]}, f, ensure_ascii=False)
            f.write("\n")


if __name__ == "__main__":
    main()
