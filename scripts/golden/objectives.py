#!/usr/bin/env python3
"""Makes tests/fixtures/objectives/*.json: values and autograd gradients of every loss, in f64, by PyTorch.

Run in a throw-away environment (`pip install torch==2.13.0 numpy`); the fixtures are committed, so tests and CI need no
Python. The formulas here are written from the papers named in docs/design/objectives.md, independently of the Rust code.
"""
import json
import math
import pathlib
import random

import torch

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "objectives"
torch.set_default_dtype(torch.float64)
rng = random.Random(20261130)


def tensor(shape, low=-1.0, high=1.0):
    flat = [rng.uniform(low, high) for _ in range(math.prod(shape))]
    return torch.tensor(flat).reshape(shape)


def ppo(r, a, low, high, dual):
    loss = torch.maximum(-r * a, -torch.clamp(r, 1 - low, 1 + high) * a)
    if dual is not None:
        loss = torch.where(a < 0, torch.minimum(loss, -dual * a), loss)
    return loss


def surrogate(spec, current, old, a, mask):
    family = spec["family"]
    diff = torch.where(mask > 0, current - old, torch.zeros_like(current))
    r = torch.exp(torch.clamp(diff, -20, 20))
    if family == "sft":
        return -current
    if family == "reinforce":
        return -a * current
    if family == "importance-sampling":
        return -r * a
    if family == "ppo":
        return ppo(r, a, spec["low"], spec["high"], spec.get("dual_clip"))
    if family == "cispo":
        return -torch.clamp(r, 1 - spec["low"], 1 + spec["high"]).detach() * a * current
    if family == "dis":
        inside = (r > 1 - spec["low"]) & (r < 1 + spec["high"])
        return -(r * inside).detach() * a * current
    if family == "gspo":
        s = (diff * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        r = torch.exp(s)[:, None].expand_as(current)
        return ppo(r, a, spec["low"], spec["high"], None)
    raise ValueError(family)


def reduce(spec, x, mask):
    x = torch.where(mask > 0, x, torch.zeros_like(x))
    rows = x.shape[0]
    kind = spec["kind"]
    if kind == "seq-mean-token-mean":
        return (x.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / rows
    if kind == "token-mean":
        return x.sum() / mask.sum().clamp(min=1)
    if kind == "seq-mean-token-sum":
        return x.sum() / rows
    if kind == "seq-mean-token-sum-norm":
        return x.sum() / rows / spec["length"]
    if kind == "sum":
        return x.sum()
    raise ValueError(kind)


SURROGATES = [
    {"family": "sft"},
    {"family": "reinforce"},
    {"family": "importance-sampling"},
    {"family": "ppo", "low": 0.2, "high": 0.2},
    {"family": "ppo", "low": 0.2, "high": 0.28, "dual_clip": 3.0},
    {"family": "cispo", "low": 1.0, "high": 4.0},
    {"family": "cispo", "low": 0.2, "high": 0.28},
    {"family": "dis", "low": 0.3, "high": 5.0},
    {"family": "dis", "low": 0.8, "high": 3.0},
    {"family": "gspo", "low": 0.2, "high": 0.28},
]
REDUCTIONS = [
    {"kind": "seq-mean-token-mean"},
    {"kind": "token-mean"},
    {"kind": "seq-mean-token-sum"},
    {"kind": "seq-mean-token-sum-norm", "length": 16.0},
    {"kind": "sum"},
]


def losses():
    cases = []
    for number in range(40):
        rows, width, vocab = rng.randint(1, 4), rng.randint(1, 7), rng.randint(2, 6)
        logits = tensor((rows, width, vocab), -2, 2).requires_grad_()
        targets = torch.tensor([[rng.randrange(vocab) for _ in range(width)] for _ in range(rows)])
        mask = torch.tensor([[float(rng.random() < 0.75) for _ in range(width)] for _ in range(rows)])
        if number % 8 == 3:
            mask[0] = 0.0
        temperature = rng.choice([1.0, 0.6, 1.3])
        logp = torch.log_softmax(logits / temperature, -1).gather(-1, targets[..., None])[..., 0]
        spread = rng.choice([0.05, 0.5, 2.0, 25.0])
        old = logp.detach() + tensor((rows, width), -spread, spread)
        advantage = tensor((rows, width), -2, 2)
        if number % 5 == 0:
            advantage[-1] = 0.0
        spec = SURROGATES[number % len(SURROGATES)]
        reduction = REDUCTIONS[(number // len(SURROGATES) + number) % len(REDUCTIONS)]
        value = reduce(reduction, surrogate(spec, logp, old, advantage, mask), mask)
        (gradient,) = torch.autograd.grad(value, logits)
        cases.append({
            "logits": logits.tolist(), "targets": targets.tolist(), "mask": mask.tolist(), "temperature": temperature,
            "old": old.tolist(), "advantage": advantage.tolist(), "surrogate": spec, "reduction": reduction,
            "value": value.item(), "gradient": gradient.tolist(),
        })
    return cases


def divergence(kind, beta, p, t):
    def kl(a, b):
        return (a.exp() * (a - b)).sum(-1)
    if kind == "forward":
        return kl(t, p)
    if kind == "reverse":
        return kl(p, t)
    m = torch.log(beta * t.exp() + (1 - beta) * p.exp())
    return beta * kl(t, m) + (1 - beta) * kl(p, m)


def divergences():
    cases = []
    for number in range(24):
        vocab = rng.randint(3, 8)
        s = tensor((2, vocab), -3, 3).requires_grad_()
        teacher = torch.log_softmax(tensor((2, vocab), -3, 3), -1)
        p = torch.log_softmax(s, -1)
        kind = ["forward", "reverse", "jsd"][number % 3]
        beta = rng.choice([0.1, 0.3, 0.5, 0.9])
        k = rng.choice([0, 2, vocab - 1])
        mode = rng.choice(["renormalized", "tail"])
        ids = None
        a, b = p, teacher
        if k:
            ids = teacher.topk(k, dim=-1).indices
            a, b = p.gather(-1, ids), teacher.gather(-1, ids)
            if mode == "renormalized":
                a, b = torch.log_softmax(a, -1), torch.log_softmax(b, -1)
            else:
                def with_tail(x):
                    rest = torch.log(-torch.expm1(torch.clamp(x.logsumexp(-1, keepdim=True), max=-1e-7)))
                    return torch.cat([x, rest], -1)
                a, b = with_tail(a), with_tail(b)
        value = divergence(kind, beta, a, b).sum()
        (gradient,) = torch.autograd.grad(value, s)
        spec = {"kind": kind, "beta": beta} if kind == "jsd" else {"kind": kind}
        cases.append({
            "student": s.tolist(), "teacher": teacher.tolist(), "divergence": spec,
            "ids": ids.tolist() if ids is not None else None, "mode": mode, "value": value.item(),
            "gradient": gradient.tolist(),
        })
    return cases


def adamw():
    cases = []
    for decay, clip, eps in [(0.0, 0.0, 1e-8), (0.1, 1.0, 1e-8), (0.01, 0.5, 1e-6)]:
        start = [tensor((3, 4)), tensor((5,))]
        parameters = [torch.nn.Parameter(x.clone()) for x in start]
        opt = torch.optim.AdamW(parameters, lr=0.02, betas=(0.9, 0.95), eps=eps, weight_decay=decay)
        gradients, after, norms = [], [], []
        for _ in range(8):
            step = [tensor(x.shape, -3, 3) for x in start]
            for p, g in zip(parameters, step):
                p.grad = g.clone()
            if clip:
                norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
            else:
                norm = torch.sqrt(sum((g**2).sum() for g in step))
            opt.step()
            gradients.append([g.flatten().tolist() for g in step])
            after.append([p.detach().flatten().tolist() for p in parameters])
            norms.append(norm.item())
        cases.append({
            "learning_rate": 0.02, "beta1": 0.9, "beta2": 0.95, "epsilon": eps, "weight_decay": decay,
            "max_grad_norm": clip, "shapes": [list(x.shape) for x in start],
            "start": [x.flatten().tolist() for x in start], "gradients": gradients, "after": after, "norms": norms,
        })
    return cases


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name, make in [("losses", losses), ("divergences", divergences), ("adamw", adamw)]:
        document = {"made_by": "scripts/golden/objectives.py", "torch": torch.__version__.split("+")[0], "cases": make()}
        (OUT / f"{name}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
