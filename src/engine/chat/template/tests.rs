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
