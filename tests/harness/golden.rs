//! Every adapter renders the same entries into the files kept under `tests/fixtures/harness/<adapter>`.
//! `REEF_UPDATE_FIXTURES=1` rewrites them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use reef::harness::adapter::{Adapter, Adapters, ModelBinding};
use reef::harness::tree::{Policy, Tree, check, schemas};
use serde_json::Value;

/// 2026-05-01T00:00:00Z: one of the facts is over, one is not.
pub const AT_US: i64 = 1_777_593_600_000_000;

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/harness")
}

fn list(name: &str) -> Vec<Value> {
    let path = fixtures().join("trees").join(format!("{name}.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

pub fn tree(adapter: &str) -> Tree {
    let mut entries = list("portable");
    entries.extend(list(adapter));
    Tree::from_json(&Value::Array(entries)).unwrap()
}

fn files(dir: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            files(&path, &format!("{name}/"), found);
        } else {
            found.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

fn rendered(adapter: &Adapter) -> BTreeMap<String, String> {
    let rendered = check(&tree(&adapter.name), adapter, &Policy::default(), AT_US).unwrap();
    // An agent's own directory is moved into the root; what lies outside it would not be read.
    for path in rendered.files.keys() {
        assert!(
            path.starts_with(&format!("{}/", adapter.home())),
            "{}: {path}",
            adapter.name
        );
    }
    let mut all: BTreeMap<String, String> = rendered
        .files
        .iter()
        .map(|(path, content)| (format!("files/{path}"), content.text().unwrap().to_owned()))
        .collect();
    for api in adapter.apis() {
        let binding = ModelBinding {
            base_url: "http://127.0.0.1:4100".to_owned(),
            api_key: "placeholder".to_owned(),
            model: "qwen3-8b".to_owned(),
            context_window: Some(32_768),
            max_output_tokens: None,
        };
        let mut files = rendered.files.clone();
        adapter.bind(&mut files, api, &binding).unwrap();
        for path in adapter.binding_files(api).unwrap() {
            all.insert(
                format!("bound-{}/{path}", api.as_str()),
                files[path].text().unwrap().to_owned(),
            );
        }
        let mut env: BTreeMap<String, String> = adapter.environment("/tree", "/state").into_iter().collect();
        env.extend(adapter.binding_env(api, &binding).unwrap());
        let env: String = env.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        all.insert(format!("bound-{}/env.txt", api.as_str()), env);
    }
    let executable: Vec<&str> = rendered.executable.iter().map(String::as_str).collect();
    all.insert("executable.txt".to_owned(), executable.join("\n") + "\n");
    all
}

#[test]
fn every_adapter_renders_what_is_kept() {
    for adapter in Adapters::built_in().unwrap().iter() {
        let dir = fixtures().join(&adapter.name);
        let now = rendered(adapter);
        assert_eq!(now, rendered(adapter), "rendering is a pure function");
        if std::env::var_os("REEF_UPDATE_FIXTURES").is_some() {
            let _absent = fs::remove_dir_all(&dir);
            for (path, text) in &now {
                let path = dir.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
        }
        let mut kept = BTreeMap::new();
        files(&dir, "", &mut kept);
        assert_eq!(
            kept.keys().collect::<Vec<_>>(),
            now.keys().collect::<Vec<_>>(),
            "{}",
            adapter.name
        );
        for (path, text) in &kept {
            assert_eq!(text, &now[path], "{}: {path}", adapter.name);
        }
    }
}

#[test]
fn the_published_schemas_are_current_and_accept_what_is_admitted() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/schemas");
    let mut tree_schema = Value::Null;
    for (name, schema) in schemas() {
        let path = dir.join(name);
        let text = format!("{schema:#}\n");
        if std::env::var_os("REEF_UPDATE_DOCS").is_some() {
            fs::create_dir_all(&dir).unwrap();
            fs::write(&path, &text).unwrap();
        }
        assert_eq!(
            fs::read_to_string(&path).unwrap_or_default(),
            text,
            "{name} is out of date: REEF_UPDATE_DOCS=1"
        );
        if name.starts_with("harness-tree") {
            tree_schema = schema;
        }
    }
    let validator = jsonschema::validator_for(&tree_schema).unwrap();
    for adapter in Adapters::built_in().unwrap().iter() {
        let tree = tree(&adapter.name);
        for form in [tree.to_json(), tree.entries_json()] {
            let faults: Vec<String> = validator.iter_errors(&form).map(|error| error.to_string()).collect();
            assert!(faults.is_empty(), "{}: {faults:?}", adapter.name);
        }
    }
    let bad = serde_json::json!([{"id": "a", "name": "rules", "config": {"text": "x", "more": 1}}]);
    assert!(!validator.is_valid(&bad));
}
