//! Binding an agent to a model: which address, which name, which key. Never part of a tree; written by the installer and
//! for episodes.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::descriptor::{Adapter, ConfigTarget, WireModel};
use super::document::{merge, text};
use super::error::AdapterError;
use super::template::fill;
use crate::domain::{Content, Dialect};

/// The API an agent speaks to its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WireApi {
    /// OpenAI chat completions.
    Openai,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Anthropic,
}

impl WireApi {
    /// The word used in descriptors and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Responses => "responses",
            Self::Anthropic => "anthropic",
        }
    }
}

impl From<WireApi> for Dialect {
    fn from(api: WireApi) -> Self {
        match api {
            WireApi::Openai => Self::OpenaiChat,
            WireApi::Responses => Self::OpenaiResponses,
            WireApi::Anthropic => Self::Anthropic,
        }
    }
}

/// What an agent is bound to.
#[derive(Debug, Clone)]
pub struct ModelBinding {
    /// Root of the service, without `/v1` and without a trailing slash.
    pub base_url: String,
    /// What the agent sends as its key: a placeholder where a proxy puts the real one in.
    pub api_key: String,
    /// The model's name.
    pub model: String,
    /// Its context window in tokens, where known.
    pub context_window: Option<u64>,
    /// The longest answer in tokens, where known.
    pub max_output_tokens: Option<u64>,
}

impl ModelBinding {
    fn fillers(&self) -> Map<String, Value> {
        let fillers = json!({
            "base_url": self.base_url.trim_end_matches('/'),
            "api_key": self.api_key,
            "model": self.model,
            "context_window": self.context_window,
            "max_output_tokens": self.max_output_tokens,
        });
        fillers.as_object().cloned().unwrap_or_default()
    }
}

impl ConfigTarget {
    /// Reads the file back.
    pub(in crate::harness) fn read(&self, content: &Content) -> Result<Map<String, Value>, AdapterError> {
        let text = content.text().ok_or_else(|| AdapterError::Document {
            path: self.path.clone(),
            format: self.format.as_str(),
            fault: "it is no text".to_owned(),
        })?;
        self.format.read(&self.path, text)
    }
}

impl Adapter {
    /// The APIs the agent speaks, the preferred one first.
    pub fn apis(&self) -> Vec<WireApi> {
        self.models.keys().copied().collect()
    }

    fn wire_model(&self, api: WireApi) -> Result<&WireModel, AdapterError> {
        self.models.get(&api).ok_or_else(|| AdapterError::Api {
            adapter: self.title.clone(),
            api: api.as_str(),
            known: self
                .models
                .keys()
                .map(|api| api.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    /// Writes the binding into rendered files, keeping everything else in them.
    pub fn bind(
        &self,
        files: &mut BTreeMap<String, Content>,
        api: WireApi,
        binding: &ModelBinding,
    ) -> Result<(), AdapterError> {
        let fillers = binding.fillers();
        let mut bound = BTreeMap::new();
        for (name, data) in &self.wire_model(api)?.config {
            let Some(target) = self.config.get(name) else { continue };
            let mut document = match files.get(&target.path) {
                Some(content) => target.read(content)?,
                None => target.defaults.clone(),
            };
            if let Value::Object(data) = fill(&Value::Object(data.clone()), &fillers) {
                merge(&mut document, &data);
            }
            let written = text(target.format, &document).map_err(|fault| AdapterError::Document {
                path: target.path.clone(),
                format: "a configuration file",
                fault,
            })?;
            bound.insert(target.path.clone(), Content::from(written));
        }
        files.extend(bound);
        Ok(())
    }

    /// The variables that go with the binding.
    pub fn binding_env(&self, api: WireApi, binding: &ModelBinding) -> Result<IndexMap<String, String>, AdapterError> {
        let fillers = binding.fillers();
        let env = &self.wire_model(api)?.env;
        Ok(env
            .iter()
            .map(|(name, value)| {
                let value = match fill(&Value::String(value.clone()), &fillers) {
                    Value::String(text) => text,
                    Value::Null => String::new(),
                    other => other.to_string(),
                };
                (name.clone(), value)
            })
            .collect())
    }

    /// The files a binding is written into.
    pub fn binding_files(&self, api: WireApi) -> Result<Vec<&str>, AdapterError> {
        let names = self.wire_model(api)?.config.keys();
        Ok(names
            .filter_map(|name| self.config.get(name))
            .map(|target| target.path.as_str())
            .collect())
    }
}
