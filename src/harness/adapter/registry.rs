//! The adapters that come with the program, and those of a deployment.

use std::path::Path;

use super::{Adapter, AdapterError};

const BUILT_IN: [(&str, &str); 7] = [
    ("pi", include_str!("../../../templates/adapters/pi.toml")),
    ("claude", include_str!("../../../templates/adapters/claude.toml")),
    ("codex", include_str!("../../../templates/adapters/codex.toml")),
    ("opencode", include_str!("../../../templates/adapters/opencode.toml")),
    ("qwen", include_str!("../../../templates/adapters/qwen.toml")),
    ("openclaw", include_str!("../../../templates/adapters/openclaw.toml")),
    ("hermes", include_str!("../../../templates/adapters/hermes.toml")),
];

/// Every known adapter. Cheap enough to build where it is needed.
#[derive(Debug, Clone)]
pub struct Adapters {
    list: Vec<Adapter>,
}

impl Adapters {
    /// Those that come with the program.
    pub fn built_in() -> Result<Self, AdapterError> {
        let list = BUILT_IN
            .iter()
            .map(|(name, text)| Adapter::parse(&format!("{name} (built in)"), text))
            .collect::<Result<_, _>>()?;
        Ok(Self { list })
    }

    /// Whether an adapter of this name comes with the program.
    pub fn is_built_in(name: &str) -> bool {
        BUILT_IN.iter().any(|(known, _)| *known == name)
    }

    /// Adds every `*.toml` of a directory; one with the name of a built-in adapter replaces it.
    pub fn with_directory(mut self, dir: &Path) -> Result<Self, AdapterError> {
        let failed = |source| AdapterError::Read {
            path: dir.to_path_buf(),
            source,
        };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                paths.push(path);
            }
        }
        paths.sort();
        for path in paths {
            let adapter = Adapter::read(&path)?;
            self.list.retain(|known| known.name != adapter.name);
            self.list.push(adapter);
        }
        Ok(self)
    }

    /// All of them, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Adapter> {
        self.list.iter()
    }

    /// Their names.
    pub fn names(&self) -> Vec<&str> {
        self.list.iter().map(|adapter| adapter.name.as_str()).collect()
    }

    /// The one with this name.
    pub fn get(&self, name: &str) -> Result<&Adapter, AdapterError> {
        self.list
            .iter()
            .find(|adapter| adapter.name == name)
            .ok_or_else(|| AdapterError::Unknown {
                name: name.chars().take(60).flat_map(char::escape_default).collect(),
                known: self.names().join(", "),
            })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::harness::adapter::{ModelBinding, WireApi};

    fn binding() -> ModelBinding {
        ModelBinding {
            base_url: "http://127.0.0.1:8900/".to_owned(),
            api_key: "placeholder".to_owned(),
            model: "m".to_owned(),
            context_window: Some(32_000),
            max_output_tokens: None,
        }
    }

    #[test]
    fn every_built_in_adapter_can_be_read_and_bound() {
        let adapters = Adapters::built_in().unwrap();
        assert_eq!(
            adapters.names(),
            ["pi", "claude", "codex", "opencode", "qwen", "openclaw", "hermes"]
        );
        for adapter in adapters.iter() {
            assert!(adapter.install.is_some() && !adapter.home().is_empty());
            for api in adapter.apis() {
                let mut files = BTreeMap::new();
                adapter.bind(&mut files, api, &binding()).unwrap();
                let env = adapter.binding_env(api, &binding()).unwrap();
                let said = format!("{files:?} {env:?}");
                assert!(said.contains("http://127.0.0.1:8900"), "{said}");
                assert!(!said.contains("8900//") && said.contains("placeholder"), "{said}");
                assert!(!said.contains("_window}") && !said.contains("_tokens}"), "{said}");
            }
        }
    }

    #[test]
    fn a_binding_keeps_what_the_file_held() {
        let adapters = Adapters::built_in().unwrap();
        let codex = adapters.get("codex").unwrap();
        let mut files = BTreeMap::from([(
            "codex/config.toml".to_owned(),
            "model_verbosity = \"low\"\n\n[tui]\nnotifications = true\n".into(),
        )]);
        codex.bind(&mut files, WireApi::Responses, &binding()).unwrap();
        let text = files["codex/config.toml"].text().unwrap();
        for part in [
            "model_verbosity = \"low\"",
            "notifications = true",
            "wire_api = \"responses\"",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let error = codex.bind(&mut files, WireApi::Openai, &binding()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Codex does not speak the openai API; it speaks responses"
        );
    }

    #[test]
    fn commands_and_variables_are_filled_in() {
        let adapters = Adapters::built_in().unwrap();
        let claude = adapters.get("claude").unwrap();
        assert_eq!(claude.headless("{root} of all")[1], "{root} of all");
        assert_eq!(claude.environment("/r", "/s")["CLAUDE_CONFIG_DIR"], "/r/claude");
        let has = |path: &str| path == "claude/mcp.json";
        assert_eq!(
            claude.extra_arguments(has, "/r", "/s"),
            ["--mcp-config", "/r/claude/mcp.json"]
        );
        assert!(claude.extra_arguments(|_| false, "/r", "/s").is_empty());
        let pi = adapters.get("pi").unwrap();
        assert_eq!(
            (pi.home(), pi.trajectory_dir("/r", "/s").as_str()),
            ("pi-agent", "/s/sessions")
        );
        assert!(
            adapters
                .get("../x")
                .unwrap_err()
                .to_string()
                .contains("known adapters are pi, claude")
        );
    }

    #[test]
    fn a_descriptor_that_cannot_work_is_refused_with_its_key() {
        let pi = BUILT_IN[0].1;
        for (from, to, part) in [
            ("format = 1", "format = 2", "format must be 1"),
            ("\"{prompt}\"", "\"prompt\"", "argv must hold {prompt}"),
            ("pi-agent/AGENTS.md", "../AGENTS.md", "without '..'"),
            (
                "relocation = \"PI_CODING_AGENT_DIR\"",
                "relocation = \"HOME\"",
                "relocation must name",
            ),
            (
                "[config.models]",
                "[config.other]",
                "there is no config target \"models\"",
            ),
            (
                "version = \"0.84.2\"",
                "version = \"1; rm\"",
                "install: package and version",
            ),
            ("binary = \"pi\"", "binry = \"pi\"", "binry"),
        ] {
            assert!(pi.contains(from), "{from}");
            let text = pi.replace(from, to).replace(
                "[[config.models.forbid]]\nkey = \"providers\"\nbecause = \"the installer binds the model\"\n",
                "",
            );
            let error = Adapter::parse("test.toml", &text).unwrap_err().to_string();
            assert!(
                error.starts_with("adapter descriptor test.toml: ") && error.contains(part),
                "{error}"
            );
        }
    }

    #[test]
    fn a_directory_adds_and_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let text = BUILT_IN[0].1.replace("name = \"pi\"", "name = \"pi-two\"");
        std::fs::write(dir.path().join("x.toml"), text).unwrap();
        let adapters = Adapters::built_in().unwrap().with_directory(dir.path()).unwrap();
        assert_eq!(adapters.names().last(), Some(&"pi-two"));
        assert!(
            Adapters::built_in()
                .unwrap()
                .with_directory(&dir.path().join("none"))
                .is_err()
        );
    }
}
