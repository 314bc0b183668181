#!/usr/bin/env python3
"""Renders the chat templates of tests/fixtures/chat with jinja2, set up as `transformers` sets it up, and writes the
results to tests/fixtures/chat/expected.json. Needs only `pip install jinja2`.

With template files as arguments it renders those instead and writes the result to the file named by --out, to be
checked by `REEF_CHAT_GOLDEN=FILE cargo test --lib chat::template`: so real models' templates are checked without a copy.
"""

import argparse
import json
import pathlib
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent.parent.parent / "tests" / "fixtures" / "chat"


class Generation(jinja2.ext.Extension):
    """`{% generation %}`: transformers marks the span and renders the inside."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return env


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("templates", nargs="*", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "expected.json")
    args = parser.parse_args()
    cases = json.loads((HERE / "cases.json").read_text())
    results = []
    for path in args.templates or sorted(HERE.glob("*.jinja")):
        source = path.read_text()
        if path.suffix == ".json":
            source = json.loads(source)["chat_template"]
        template = environment().from_string(source)
        for name, case in cases.items():
            entry = {"template": path.name, "case": name}
            if args.templates:
                entry["source"] = source
            try:
                entry["rendered"] = template.render(
                    messages=case["messages"],
                    tools=case.get("tools"),
                    documents=case.get("documents"),
                    add_generation_prompt=case["add_generation_prompt"],
                    bos_token="<s>",
                    eos_token="</s>",
                    **case.get("variables", {}),
                )
            except (jinja2.exceptions.TemplateError, TypeError) as error:
                entry["error"] = str(error)
            results.append(entry)
    args.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(results)} renderings, {sum('error' in r for r in results)} of them refusals: {args.out}")


if __name__ == "__main__":
    main()
