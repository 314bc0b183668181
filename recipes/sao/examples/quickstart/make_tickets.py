#!/usr/bin/env python3
"""Writes the support tickets of the quickstart: train.jsonl, gate/tasks.jsonl and test.jsonl.

Every ticket is a sentence with one right label out of three. The three files share no sentence: they use different
templates, so what is measured on the last two was never seen in training. Deterministic.
"""
import itertools
import json
import pathlib
import random

HERE = pathlib.Path(__file__).parent
LABELS = ["payment", "error", "delivery"]
ITEMS = ["headphones", "laptop", "coffee maker", "desk lamp", "keyboard", "backpack", "blender", "phone case"]
APPS = ["app", "website", "dashboard", "mobile app", "account page", "search page"]
DAYS = ["yesterday", "last week", "on Monday", "two days ago", "this morning", "on Friday"]
SUMS = ["$12", "$49", "$120", "$8.50", "$75", "$30"]

TEMPLATES = {
    "payment": [
        "I was charged {sum} twice {day}.",
        "Please refund the {sum} you took from my card {day}.",
        "My invoice shows {sum} but I agreed to a lower price.",
        "Why did my subscription price go up by {sum}?",
        "The receipt for the {item} has the wrong tax.",
        "I cancelled, but {sum} was still withdrawn {day}.",
        "Can I pay the {sum} in two instalments?",
        "The discount code was not applied when I bought the {item}.",
        "My card was declined although I have enough money.",
        "I need a VAT invoice for the {item} I bought {day}.",
        "You billed my old credit card {day}.",
        "There is an unknown fee of {sum} on my statement.",
        "How do I change the payment method of my plan?",
        "I want my money back for the {item}.",
        "The monthly fee of {sum} was taken too early.",
        "Was the {sum} a deposit or the full payment?",
    ],
    "error": [
        "The {app} crashes when I open it.",
        "I cannot log in to the {app} since {day}.",
        "The {app} shows an error 500.",
        "The password reset mail of the {app} has a broken link.",
        "The {app} is very slow {day}.",
        "My {item} does not turn on any more.",
        "The {app} logs me out every minute.",
        "After the update the {app} shows a blank screen.",
        "The {item} does not connect to wifi.",
        "Uploading a photo to the {app} fails.",
        "The {app} does not load on my tablet.",
        "The button in the {app} does nothing when I click it.",
        "My {item} makes a strange noise and stops.",
        "The {app} freezes when I type in the form.",
        "Notifications of the {app} stopped working {day}.",
        "The {item} will not pair with my phone.",
    ],
    "delivery": [
        "My {item} has not arrived yet.",
        "The parcel with the {item} was left at the wrong address {day}.",
        "The tracking number for the {item} does not move since {day}.",
        "When will the {item} I ordered {day} be delivered?",
        "The courier did not ring {day}.",
        "The box with the {item} arrived damaged.",
        "Can you send the {item} to my office instead?",
        "The {item} was delivered to my neighbour.",
        "Is express delivery possible for the {item}?",
        "I got a {item} that I did not order in my package.",
        "The delivery of the {item} is late.",
        "Where is my package with the {item}?",
        "The courier returned my {item} to the warehouse {day}.",
        "Half of the package is missing, only the {item} came.",
        "Please change the delivery date of the {item}.",
        "The package was shipped {day} and is still in transit.",
    ],
}


def sentences(template):
    slots = {"item": ITEMS, "app": APPS, "day": DAYS, "sum": SUMS}
    used = [name for name in slots if "{" + name + "}" in template]
    for values in itertools.product(*(slots[name] for name in used)):
        yield template.format(**dict(zip(used, values)))


def split(rng, templates, per_template):
    rows = []
    for label in LABELS:
        for template in templates[label]:
            texts = list(sentences(template))
            rng.shuffle(texts)
            rows += [{"text": text, "label": label} for text in texts[:per_template]]
    rng.shuffle(rows)
    return rows


def main():
    rng = random.Random(20250701)
    parts = {"train": {}, "gate": {}, "test": {}}
    for label, templates in TEMPLATES.items():
        order = templates[:]
        rng.shuffle(order)
        parts["train"][label], parts["gate"][label], parts["test"][label] = order[:8], order[8:12], order[12:]
    shots = json.loads((HERE / "messages.json").read_text())
    for name, per_template in [("train", 10), ("gate", 5), ("test", 5)]:
        rows = split(rng, parts[name], per_template)
        if name == "gate":
            (HERE / "gate").mkdir(exist_ok=True)
            tasks = [
                {
                    "id": f"ticket-{n:02}",
                    "messages": shots + [{"role": "user", "content": "Ticket: " + row["text"]}],
                    "answer": row["label"],
                }
                for n, row in enumerate(rows)
            ]
            (HERE / "gate" / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        else:
            (HERE / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(name, len(rows), {label: sum(row["label"] == label for row in rows) for label in LABELS})


if __name__ == "__main__":
    main()
