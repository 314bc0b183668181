use std::path::Path;

use serde_json::json;

use super::*;

#[derive(serde::Deserialize)]
struct Golden {
    template: String,
    case: String,
    source: Option<String>,
    rendered: Option<String>,
    error: Option<String>,
}

fn constants() -> Map<String, Json> {
    let Json::Object(map) = json!({"bos_token": "<s>", "eos_token": "</s>"}) else {
        unreachable!()
    };
    map
}

/// Renders every case as the golden file says it was rendered.
fn check(goldens: &[Golden]) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat");
    let cases: Json = serde_json::from_slice(&std::fs::read(fixtures.join("cases.json")).unwrap()).unwrap();
    let mut faults = Vec::new();
    for golden in goldens {
        let source = match &golden.source {
            Some(source) => source.clone(),
            None => std::fs::read_to_string(fixtures.join(&golden.template)).unwrap(),
        };
        let case = &cases[&golden.case];
        let list = |name: &str| case[name].as_array().cloned().unwrap_or_default();
        let mut variables = case["variables"].as_object().cloned().unwrap_or_default();
        if let Some(documents) = case.get("documents") {
            variables.insert("documents".to_owned(), documents.clone());
        }
        let rendered = ChatTemplate::new(&source, constants()).and_then(|template| {
            template.render(
                &list("messages"),
                &list("tools"),
                case["add_generation_prompt"] == true,
                &variables,
            )
        });
        let place = format!("{} / {}", golden.template, golden.case);
        match (rendered, &golden.rendered, &golden.error) {
            (Ok(ours), Some(theirs), _) if ours == *theirs => {}
            (Err(TemplateError::Refused { message }), None, Some(theirs)) if message == *theirs => {}
            (ours, theirs, error) => faults.push(format!("{place}\nours:   {ours:?}\njinja2: {theirs:?} {error:?}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn templates_render_as_jinja2_renders_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat/expected.json");
    let goldens: Vec<Golden> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(goldens.len() >= 30, "{} goldens", goldens.len());
    check(&goldens);
}

/// Real models' templates, rendered by `scripts/golden/chat_templates.py`, where a run names the file.
#[test]
fn named_templates_render_as_jinja2_renders_them() {
    if let Some(path) = std::env::var_os("REEF_CHAT_GOLDEN") {
        check(&serde_json::from_slice::<Vec<Golden>>(&std::fs::read(path).unwrap()).unwrap());
    }
}

#[test]
fn a_template_that_does_not_parse_is_a_syntax_error() {
    assert!(matches!(
        ChatTemplate::new("{% if %}", Map::new()),
        Err(TemplateError::Syntax { .. })
    ));
}

#[test]
fn an_undefined_attribute_is_an_error_and_not_an_empty_text() {
    let template = ChatTemplate::new("{{ messages[0].a.b }}", Map::new()).unwrap();
    let rendered = template.render(&[json!({"role": "user"})], &[], true, &Map::new());
    assert!(matches!(rendered, Err(TemplateError::Render { .. })), "{rendered:?}");
}

/// Templates that would hold a core or take all memory. Each is refused in the time of a few honest ones.
const HOSTILE: [&str; 29] = [
    "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s|replace('x', 'xx') %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
    "{{ 'x' * 10000000000 }}",
    "{{ [1] * 10000000000 }}",
    "{{ ([1] * 10000000000) ~ '' }}",
    "{{ ([1] * 10000000000)|tojson }}",
    "{{ ([1] * 10000000000)|list }}",
    "{{ ([1] * 10000000000)|sort }}",
    "{{ ([1] * 10000000000)|join(',') }}",
    "{{ ([1] * 10000000000)|unique|list }}",
    "{{ ([1] * 10000000000)|length ~ ([1] * 10000000000)|reverse|list }}",
    "{{ ''.join(['x' * 1000] * 10000000000) }}",
    "{{ ','.join([[1] * 10000000000]) }}",
    "{{ ([0] * 10000000000).count(1) }}",
    "{{ 'x'.startswith([['y'][0]] * 10000000000) }}",
    "{{ 1 in [0] * 10000000000 }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ messages|tojson(indent=1000000000) }}",
    "{{ messages|tojson(separators=('x' * 100000, ':')) }}",
    "{% for i in range(100000) %}{% set x = messages|tojson %}{% set y = messages|tojson %}{% endfor %}",
    "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% for a in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "{% for i in range(100000) %}{{ messages[0].content }}{{ 'padding of a line' * 100 }}{% endfor %}",
    "{% set s = 'x' * 1000000 %}{% for i in range(100000) %}{% if s.count('y') %}{% endif %}{% endfor %}",
    "{% set ns = namespace(a=1) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
];

#[test]
fn a_template_cannot_hold_a_core_or_take_all_memory() {
    let messages = [json!({"role": "user", "content": "hello"})];
    for source in HOSTILE {
        let begun = std::time::Instant::now();
        let template = ChatTemplate::new(source, constants()).unwrap();
        let rendered = template.render(&messages, &[], true, &Map::new());
        let took = begun.elapsed();
        // Some are refused for a number they name, most for what they take; nobody gets a prompt.
        assert!(rendered.is_err(), "{source}: {} bytes", rendered.unwrap().len());
        assert!(took.as_secs() < 20, "{source}: {took:?}");
    }
    let excessive = |source: &str| {
        let rendered = ChatTemplate::new(source, constants())
            .and_then(|template| template.render(&messages, &[], true, &Map::new()));
        matches!(rendered, Err(error @ TemplateError::Excessive { .. }) if error.is_the_templates())
    };
    assert!(
        HOSTILE[..6].iter().all(|source| excessive(source)),
        "the fault is the template's"
    );
    assert!(excessive(&"x".repeat(limits::SOURCE + 1)));
}

#[test]
fn long_conversations_have_room_in_every_template_we_know() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat");
    let tool = json!({"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {
        "type": "object", "properties": {"at": {"type": "string", "description": "What"}}, "required": ["at"]}}});
    let tools = vec![tool; 50];
    for entry in std::fs::read_dir(fixtures).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "jinja") {
            continue;
        }
        let template = ChatTemplate::new(&std::fs::read_to_string(&path).unwrap(), constants()).unwrap();
        // Short messages cost the most for their bytes; a long one has to fit as well.
        for content in ["ok".to_owned(), "many words ".repeat(20_000)] {
            let n = if content.len() < 10 { 2000 } else { 20 };
            let messages: Vec<Json> = (0..n)
                .map(|i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": content}))
                .collect();
            let rendered = template.render(&messages, &tools, true, &Map::new());
            assert!(rendered.is_ok(), "{}: {rendered:?}", path.display());
        }
    }
}
